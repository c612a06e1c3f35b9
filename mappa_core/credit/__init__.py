"""Credit assignment from verdicts to advantages: rewards, shapers, experience and estimators. Numpy only."""
