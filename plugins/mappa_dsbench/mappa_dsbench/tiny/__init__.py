"""The small model that comes with the plugin: its tokenizer, what it was taught and how.

names.py           the pieces of which it reads and writes names of columns
programs.py        the lines of which it writes programs
demonstrations.py  the team at work, with bad habits
tokenizer.py       a token for every line and piece, and bytes for whatever else
warmstart.py       the command that builds the folder that is shipped
"""
