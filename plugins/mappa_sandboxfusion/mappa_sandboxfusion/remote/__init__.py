"""Code that is sent to servers and runs there: standard library only, Python 3.10, no imports from outside this folder.

report.py and compile.py are complete programs; the rest goes into one archive with the runner of core.
"""
