"""Stored results name the commit that made them, which is in the repository, and hold the metric of every problem."""

import json
import subprocess
from pathlib import Path

import pytest
import stored

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "docs" / "evidence" / "results").glob("*.json"))
WITHOUT_COMMIT = {"unseen_blame"}
"""Of rules, which have a hash of their own."""


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.skipif(git("rev-parse", "--is-shallow-repository") != "false", reason="there is no whole history here")
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_commit_of_a_result_is_in_the_repository(path):
    found = json.loads(path.read_text())
    assert ("commit" not in found) == (path.stem in WITHOUT_COMMIT)
    if "commit" in found:
        assert git("cat-file", "-t", found["commit"]) == "commit"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_means_are_those_of_the_values_of_every_problem(path):
    found = json.loads(path.read_text())
    for run in found["runs"] if "study" in found else ():
        for name, place in (("before", 0), ("after", -1)):
            values = list(stored.unpack(run["evaluations"][place]["values"]).values())
            assert sum(values) / len(values) == pytest.approx(run[name]["mean"])
