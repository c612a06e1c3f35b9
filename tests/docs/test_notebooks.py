"""Every notebook of the documents runs from its first cell to its last and prints nothing but what it shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mappa.look.demo import unpack_demo

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))

SHOWN = {
    "train.ipynb": (
        "<progress value=\"8\" max=\"8\"></progress> 8/8 iterations", "held-out tasks: 32 problems", "to blame in",
        "data:image/svg+xml;base64,", "rollouts/failed", "outcomes - judged", "cannot be told",
        "<progress value=\"20\" max=\"20\"></progress> 20/20 verdicts", "signs flipped",
    ),
    "logs.ipynb": ("3/3 plays", "where to look first", "3 of 3"),
}  # fmt: skip
"""What a notebook must show as HTML."""


def test_a_team_is_trained_in_twelve_lines():
    """Imports, workflow, coach and training, blank lines left out; its tasks come before."""
    cells = [cell.source for cell in nbformat.read(NOTEBOOKS[0].with_name("train.ipynb"), as_version=4).cells]
    (team,) = (cell for cell in cells if "class Picker(Workflow)" in cell)
    assert "mappa.train(" in team and "def judge(scene)" in team
    assert len([line for line in team.splitlines() if line.strip()]) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("MAPPA_RUN", str(unpack_demo(tmp_path)))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(path.parents[2]), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", ())]
    assert outputs and not [one for one in outputs if one.get("name") == "stderr"]
    shown = "".join(one["data"].get("text/html", "") for one in outputs if "data" in one)
    for piece in SHOWN.get(path.name, ()):
        assert piece in shown, piece
    assert not any(cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells), "stored without outputs"
