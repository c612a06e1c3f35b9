"""Checks the files that agents leave against the team's contracts. These files are opened in the sandbox only."""

from mappa_dsbench.contracts.faults import FAULT_IS_HARD
from mappa_dsbench.contracts.inspect_files import Facts, inspect_action, inspect_files

__all__ = ["FAULT_IS_HARD", "Facts", "inspect_action", "inspect_files"]
