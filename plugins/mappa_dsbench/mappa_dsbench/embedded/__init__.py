"""The embedded tasks: real tables that ship inside Python packages, cut so that they look like DSBench's tasks.

sources.py    reads a data set from the installed package's own files
recipes.py    what is predicted from which columns of which data set, and how it is graded
names.py      draws that are the same everywhere, and the words that stand in for the real names
cutting.py    frame and recipe -> train.csv, test.csv, sample_submission.csv, test_answer.csv
catalogue.py  the tasks of both splits
reference.py  submissions of fixed models, from which an incredible score is told
facts.py      what is known of every task without cutting it
tasks.py      the task source: cuts on demand, keeps what it cut
"""
