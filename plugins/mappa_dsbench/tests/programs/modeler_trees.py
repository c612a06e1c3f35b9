import pickle
from pathlib import Path

import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor

model = ExtraTreesRegressor(n_estimators=20, min_samples_leaf=2, random_state=1)
model.fit(pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl"))
Path("model.pkl").write_bytes(pickle.dumps(model))
