"""Stored results name the commit that made them, which is in the repository, and hold the metric of every problem."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import stored

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "docs" / "evidence" / "results").glob("*.json"))
COMMIT_LOST = {"bias_former"}
"""Made at commits that are not in this repository, as docs/evidence/README.md says; the next results leave this set."""
WITHOUT_COMMIT = {"preferences"}
"""Of simulations, which name their seed."""
MEANS_ALONE = {*COMMIT_LOST, "alignment", "blamed_agents_mathchat", "process_vs_outcome"}
"""Stored before results held the metric of every problem; the next results leave this set."""


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.skipif(git("rev-parse", "--is-shallow-repository") != "false", reason="there is no whole history here")
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_commit_of_a_result_is_in_the_repository(path):
    found = json.loads(path.read_text())
    assert ("commit" not in found) == (path.stem in WITHOUT_COMMIT)
    if "commit" in found:
        assert (git("cat-file", "-t", found["commit"]) == "commit") == (path.stem not in COMMIT_LOST)


def test_the_page_names_those_whose_commit_is_lost():
    page = (ROOT / "docs" / "evidence" / "README.md").read_text()
    (said,) = (part for part in page.split("\n\n") if part.startswith("**Lost commits.**"))
    assert set(re.findall(r"`(\w+)\.json`", said)) == COMMIT_LOST


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_means_are_those_of_the_values_of_every_problem(path):
    found = json.loads(path.read_text())
    for run in found["runs"] if "study" in found else ():
        assert "evaluations" in run or path.stem in MEANS_ALONE
        for name, place in (("before", 0), ("after", -1)):
            if "evaluations" in run:
                values = list(stored.unpack(run["evaluations"][place]["values"]).values())
                assert sum(values) / len(values) == pytest.approx(run[name]["mean"])
