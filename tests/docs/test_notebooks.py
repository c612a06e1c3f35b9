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
    assert not any(cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells), "stored without outputs"
