"""Services that keep traces of teams: traces are pulled from them as logs, and verdicts written back to the very spans.

A trace becomes a file of its own, so that a pull that broke off goes on where it ended, and a folder of them grows.
"""
