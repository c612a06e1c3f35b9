"""X_train.pkl and y_train.pkl -> model.pkl: a small random forest, classifier or regressor as the metric requires."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pandas as pd
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

_TREES = 20


def main() -> None:
    prediction = json.loads(sys.argv[1])["prediction"]
    x_train, y_train = pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl")
    kind = RandomForestRegressor if prediction in ("number", "count") else RandomForestClassifier
    model = kind(_TREES, min_samples_leaf=2, random_state=0)
    if prediction == "words":
        y_train = y_train.fillna("")
    Path("model.pkl").write_bytes(pickle.dumps(model.fit(x_train, y_train)))


if __name__ == "__main__":
    main()
