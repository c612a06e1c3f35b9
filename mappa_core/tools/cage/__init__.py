"""What stands around a program: everything that runs on the other side of the tool `python`.

Standard library only, and nothing of the rest of Mappa: it is forked into every program, and sent to servers as it is.
"""
