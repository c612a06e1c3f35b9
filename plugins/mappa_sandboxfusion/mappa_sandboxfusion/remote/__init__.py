"""What runs on servers, sent there with each call: standard library only, Python 3.10, nothing of Mappa but itself.

report.py and compile.py are whole programs; the rest goes into one archive with the runner of core.
"""
