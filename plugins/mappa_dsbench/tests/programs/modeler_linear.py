import pandas as pd
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

X_train = pd.read_pickle("X_train.pkl")
y_train = pd.read_pickle("y_train.pkl")
model = make_pipeline(StandardScaler(), Ridge())
model.fit(X_train, y_train)
pd.to_pickle(model, "model.pkl")
