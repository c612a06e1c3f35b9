"""The tiny model that comes with the plugin: its tokenizer, demonstrations and warm start.

names.py           the pieces of column names
programs.py        the lines of programs
planted_faults.py  the faults planted in programs, and their probabilities
synthetic_tables.py  synthetic tasks
predict_outcome.py the predicted result of a program
demonstrations.py  conversations of the team at work, with planted faults
tokenizer.py       one token per line and piece, and bytes for other text
warm_start.py      the command that builds the shipped folder
"""
