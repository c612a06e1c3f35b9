import pandas as pd

train = pd.read_csv("train.csv")
test = pd.read_csv("test.csv")

y_train = train["TARGET"]
X_train = train.drop(columns=[*"TARGETS", "ID"])
X_test = test.drop(columns=["ID"])

X_train = pd.get_dummies(X_train, dtype=float)
X_test = pd.get_dummies(X_test, dtype=float).reindex(columns=X_train.columns, fill_value=0.0)
medians = X_train.median()
X_train = X_train.fillna(medians)
X_test = X_test.fillna(medians)

X_train.to_pickle("X_train.pkl")
y_train.to_pickle("y_train.pkl")
X_test.to_pickle("X_test.pkl")
print("features:", X_train.shape, X_test.shape)
