"""The plugin's own programs: they make artifacts that keep their contract, from any task's tables.

They are run where programs of agents run. What they leave stands in for an artifact that is broken when an agent's own
program is tried once more (`substitution`); no agent ever sees it. Nothing in them is tuned: a modest model is enough
to tell whether a program works on good files.
"""

from __future__ import annotations

from pathlib import Path

IN_ORDER = ("features", "model")
"""Which program is run after which, in one folder."""


def code_of(name: str) -> str:
    """A reference program. Its command line holds one JSON object: `id_column`, `targets`, and `prediction` of the
    task's metric."""
    return (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
