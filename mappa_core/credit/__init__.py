"""From verdicts to advantages: rewards, shapers, the experience of an iteration, estimators. Numpy only."""
