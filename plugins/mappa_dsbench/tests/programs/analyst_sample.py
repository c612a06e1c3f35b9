import joblib
import pandas as pd

model = joblib.load("model.pkl")
X_test = joblib.load("X_test.pkl")
test = pd.read_csv("test.csv")
predicted = model.predict(X_test)

submission = pd.read_csv("sample_submission.csv")
submission["ID"] = test["ID"]
submission["TARGETS"] = predicted.reshape(len(test), -1)
submission.to_csv("submission.csv", index=False)
