"""The embedded tasks: real tables that ship inside Python packages, in the form of DSBench's tasks.

sources.py    reads a data set from the installed package's own files
recipes.py    data set, features, targets and metric of each task
names.py      deterministic draws, and the words that replace the real names
cutting.py    frame and recipe -> train.csv, test.csv, sample_submission.csv, test_answer.csv
catalogue.py  the tasks of both splits
reference.py  scores of fixed models, to detect incredible scores
facts.py      stored facts of every task
tasks.py      the task source: makes files on demand and caches them
"""
