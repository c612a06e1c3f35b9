"""What is said of a config that cannot start."""

from __future__ import annotations

from mappa.session.config_problems import find_problems
from mappa.sessions import compose
from mappa.testing import load_plugins


def test_an_error_about_a_column_says_who_named_it(acme, write):
    """A layer below may have named it for another file."""
    registry = load_plugins()
    rows = write("rows.jsonl", '{"prompt": "1 + 1", "answer": "2"}\n')
    low = write("low.yaml", "tasks:\n  use: file\n  options: {path: a.jsonl, reference: solution}\n")
    composed = compose(registry, "acme", config_files=[low], overrides=[f"tasks.options.path={rows}"])
    (problem, *_) = find_problems(composed, registry)
    assert "no column 'solution'; the columns here are prompt, answer" in problem
    assert problem.endswith(f"(tasks.options.reference: set by {low}:3)")
