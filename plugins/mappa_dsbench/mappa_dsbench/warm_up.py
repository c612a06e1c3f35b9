"""Does once what programs of agents usually do, so that libraries have done what they do on first use.

It is run by the fork server, in a folder of its own.
"""

import pickle

import joblib
import pandas as pd
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

ROWS = 40
REGRESSORS = (
    LinearRegression(),
    make_pipeline(MinMaxScaler(), Ridge()),
    DecisionTreeRegressor(max_depth=3),
    RandomForestRegressor(3, random_state=0),
    ExtraTreesRegressor(3, random_state=0),
)
CLASSIFIERS = (
    DummyClassifier(),
    make_pipeline(StandardScaler(), LogisticRegression()),
    KNeighborsClassifier(),
    DecisionTreeClassifier(max_depth=3),
    RandomForestClassifier(3, random_state=0),
    ExtraTreesClassifier(3, random_state=0),
)


def write_tables() -> None:
    frame = pd.DataFrame({"id": range(ROWS), "size": [row * 0.5 for row in range(ROWS)]})
    frame["kind"] = [("red", "green", "blue")[row % 3] for row in range(ROWS)]
    frame["when"] = [f"2020-01-{row % 28 + 1:02}" for row in range(ROWS)]
    frame["price"], frame["sold"] = frame["size"] * 2 + 1, frame["id"] % 2
    frame.loc[::7, "size"] = None
    frame.to_csv("train.csv", index=False)
    frame.drop(columns=["price", "sold"]).to_csv("test.csv", index=False)


def write_features() -> None:
    train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
    train["day"] = pd.to_datetime(train.pop("when"), errors="coerce").dt.day
    test["day"] = pd.to_datetime(test.pop("when"), errors="coerce").dt.day
    for summary in (train["kind"].value_counts(), train.isna().sum(), train.describe(), train.head()):
        str(summary)
    encoded = pd.get_dummies(train.drop(columns=["id", "price", "sold"]))
    unknown = pd.get_dummies(test.drop("id", axis=1)).reindex(columns=encoded.columns, fill_value=0)
    both = pd.concat([encoded, unknown]).astype(float)
    middle, spread = both.median(), both.std() + 1e-9
    encoded, unknown = ((table.fillna(middle) - both.mean()) / spread for table in (encoded, unknown))
    encoded.to_pickle("X_train.pkl")
    unknown.to_pickle("X_test.pkl")
    train[["price", "sold"]].to_pickle("y_train.pkl")


def fit_and_predict() -> None:
    known, unknown = pd.read_pickle("X_train.pkl"), pd.read_pickle("X_test.pkl")
    targets = pd.read_pickle("y_train.pkl")
    for name, models in (("price", REGRESSORS), ("sold", CLASSIFIERS)):
        for model in models:
            model.fit(known, targets[name])
            joblib.dump(model, "model.joblib")
            fitted = pickle.loads(pickle.dumps(model))
            predicted = fitted.predict(unknown)
            if hasattr(fitted, "predict_proba"):
                predicted = fitted.predict_proba(unknown)[:, 1]
    table = pd.read_csv("test.csv")[["id"]]
    table["price"] = predicted
    table.to_csv("submission.csv", index=False)


write_tables()
write_features()
fit_and_predict()
