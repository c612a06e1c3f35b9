import pickle
from pathlib import Path

import pandas as pd
from sklearn.ensemble import RandomForestRegressor

X_train = pd.read_pickle("X_train.pkl")
y_train = pd.read_pickle("y_train.pkl")

model = RandomForestRegressor(n_estimators=20, min_samples_leaf=2, random_state=0)
model.fit(X_train, y_train)

with Path("model.pkl").open("wb") as file:
    pickle.dump(model, file)
