"""The sandbox: all code of the tool `python` that runs in the processes around an agent's program.

Standard library only, and no imports from the rest of Mappa: it is forked into every program, and shipped to servers
on its own.
"""
