"""A stranger's engine trains a team and keeps the contract of engines, where neither torch nor mappa-engine is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NUMPY = Path(__file__).parents[1] / "third_party" / "acme_numpy"
ABSENT = """
import importlib.metadata, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "mappa_engine"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
every = importlib.metadata.distributions
importlib.metadata.distributions = lambda **kinds: (one for one in every(**kinds) if one.name != "mappa-engine")
"""


@pytest.fixture
def without_engine(site, tmp_path):
    """Run a program in a process of its own, with the stranger's package and without mappa-engine and torch."""
    site.install("acme_numpy")

    def run(program: str, *arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": f"{site.python_path}:{':'.join(sys.path)}"}
        command = [sys.executable, "-c", f"{ABSENT}\n{program}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    return run


@pytest.mark.slow
def test_it_trains_a_team(without_engine, tmp_path):
    words = ("train", "--plugin", "tables", "--name", "run", "--json", f"run.root={tmp_path}")
    said = without_engine("from mappa.cli import main\nsys.exit(main(sys.argv[1:]))", *words)
    result = json.loads(said.splitlines()[-1])
    assert result["iterations"] == 40
    assert result["eval"]["before"]["high"] < result["eval"]["after"]["low"]


def test_it_keeps_the_contract_of_engines(without_engine):
    settings = ("-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--import-mode=importlib")
    said = without_engine(
        "import pytest\nsys.exit(pytest.main(sys.argv[1:]))", *settings, "--rootdir", str(NUMPY), str(NUMPY / "tests")
    )
    assert "11 passed" in said, said
