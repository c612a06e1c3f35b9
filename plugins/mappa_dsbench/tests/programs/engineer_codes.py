import pandas as pd
from pandas.api.types import is_numeric_dtype

train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
y_train = train["TARGET"]
features = [column for column in test.columns if column != "ID"]
X_train, X_test = train[features].copy(), test[features].copy()
for name in features:
    if is_numeric_dtype(X_train[name]):
        filler = X_train[name].median()
        X_train[name] = X_train[name].fillna(filler)
        X_test[name] = X_test[name].fillna(filler)
    else:
        known = sorted(X_train[name].dropna().unique())
        codes = {value: code for code, value in enumerate(known)}
        X_train[name] = X_train[name].map(codes).fillna(-1).astype(int)
        X_test[name] = X_test[name].map(codes).fillna(-1).astype(int)

pd.to_pickle(X_train, "X_train.pkl")
pd.to_pickle(y_train, "y_train.pkl")
pd.to_pickle(X_test, "X_test.pkl")
