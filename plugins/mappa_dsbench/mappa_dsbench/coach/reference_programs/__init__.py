"""The plugin's own programs, which make artifacts that meet their contracts from any task's tables.

They run in the sandbox of agents' programs. Their artifacts replace broken ones when an agent's program is rerun
(`substitution`); no agent ever sees them. Nothing in them is tuned: a modest model is enough to tell whether a program
works on good files.
"""

from __future__ import annotations

from pathlib import Path

PROGRAMS_IN_ORDER = ("features", "model")
"""The programs in the order in which they run, in one folder."""


def read_program(name: str) -> str:
    """Return the source of a reference program. Its command line holds one JSON object: `id_column`, `targets`, and
    `prediction` of the task's metric."""
    return (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
