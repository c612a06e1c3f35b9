"""Files that a user names: what cannot be written is told before the work, and no name of an agent is a path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.look.output_files import check_writable, unique_file_name
from mappa_core import RunError


def test_a_place_that_takes_no_file_is_refused_and_nothing_is_left(tmp_path):
    (tmp_path / "file").write_text("kept")
    for place, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "nowhere" / "x", "No such file or directory"),
        (tmp_path / "file" / "x", "Not a directory"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        with pytest.raises(RunError, match=f"cannot be written: {why}: "):
            check_writable(place)
    check_writable(tmp_path / "file")
    check_writable(tmp_path / "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "kept")]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("solver", "solver"),
        ("Senior Writer-2.b", "Senior Writer-2.b"),
        ("план", "план"),
        ("../evil", "_._evil"),
        ("/a/b", "_a_b"),
        ("..", "_."),
        ("-x", "_x"),
        ("a*b|c:d\\e\nf\0", "a_b_c_d_e_f_"),
        ("half \ud800", "half _"),
        ("", "_"),
        ("ü" * 200, "ü" * 100),
    ],
)
def test_any_text_has_a_name_that_is_no_path(text, name):
    assert unique_file_name(text, []) == name


def test_no_two_names_are_one_file():
    names: list[str] = []
    for text in ("a/b", "a_b", "A?B", "a_b-2", "c"):
        names.append(unique_file_name(text, names))
    assert names == ["a_b", "a_b-2", "A_B-3", "a_b-2-2", "c"]


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(tmp_path, capsys, monkeypatch):
    """Run a command, in a folder with a `file`, a `folder` and a log, that must end with exit code 2 and leave nothing;
    return its message."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "name": "a", "content": "x"}]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    monkeypatch.chdir(tmp_path)

    def run(*words):
        assert main(list(words)) == 2
        assert sorted(path.name for path in Path().iterdir()) == ["file", "folder", "log.jsonl"]
        assert not list(Path("folder").iterdir())
        return " ".join(capsys.readouterr().err.split())

    return run


def test_an_import_into_a_file_is_refused(refused):
    assert "file/run: cannot be written: File exists" in refused(
        "import", "log.jsonl", "--root", "file", "--name", "run"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("prove", "norun", "--save"),
        ("report", "norun", "--out"),
        ("coach", "calibrate", "--run", "norun", "--judges", "nobody.jsonl", "--out"),
    ],
)
def test_output_path_is_checked_before_the_run(refused, command):
    assert "nowhere/x.json: cannot be written: No such file or directory: its folder is missing" in refused(
        *command, "nowhere/x.json"
    )
    assert "folder: cannot be written: Is a directory" in refused(*command, "folder")


def test_a_jury_and_its_recipe_are_two_files(refused):
    words = ("coach", "calibrate", "--run", "norun", "--judges", "nobody.jsonl", "--out", "jury.yaml")
    assert "--out jury.yaml: the recipe beside the calibration takes this name" in refused(*words)


def test_a_sweep_in_a_file_is_refused(refused, site):
    site.install("acme_doubles")
    assert "file/x: cannot be written: Not a directory" in refused("sweep", "--plugin", "doubles", "--folder", "file/x")
