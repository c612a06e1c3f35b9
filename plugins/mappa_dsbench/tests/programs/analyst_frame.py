import pickle
from pathlib import Path

import pandas as pd

with Path("model.pkl").open("rb") as file:
    model = pickle.load(file)
X_test = pd.read_pickle("X_test.pkl")
test = pd.read_csv("test.csv")

predicted = model.predict(X_test)
submission = pd.DataFrame(predicted, columns="TARGETS")
submission.insert(0, "ID", test["ID"])
submission.to_csv("submission.csv", index=False)
print(submission.head())
