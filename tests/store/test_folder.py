from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mappa.runs import RunReader
from mappa.store.folder import RunFolder, list_run_folders
from mappa_core import RunError, Step, Task

HOLD = """
import sys
from pathlib import Path
from mappa.store.folder import RunFolder
with RunFolder.open(Path(sys.argv[1])):
    print("open", flush=True)
    sys.stdin.read()
"""


def create(root: Path, name: str | None = None, **changes: Any) -> RunFolder:
    return RunFolder.create(
        root, name, **{"plugin": "mathchat", "recipe": "tiny", "config": "seed: 3 # recipe\n", **changes}
    )


def test_a_folder_without_a_name_is_named_by_what_runs_and_when(tmp_path: Path) -> None:
    with create(tmp_path) as one, create(tmp_path) as other:
        assert re.fullmatch(r"mathchat-tiny-\d{8}-\d{6}-[0-9a-f]{4}", one.path.name)
        assert one.path != other.path
        assert set(list_run_folders(tmp_path)) == {one.path, other.path}


def test_a_new_folder_holds_its_config_and_can_be_read_at_once(tmp_path: Path) -> None:
    with create(tmp_path, "mine") as folder:
        assert folder.path == tmp_path / "mine"
        assert (folder.path / "config.yaml").read_text() == "seed: 3 # recipe\n"
        folder.write_config("seed: 4\n")
        with RunReader(folder.path) as reader:
            assert list(reader.trajectories) == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine" / "config.yaml").read_text() == "seed: 4\n"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", ".hidden"])
def test_name_that_is_no_plain_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match=r"run\.name"):
        create(tmp_path, name)


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    create(tmp_path, "mine").close()
    with pytest.raises(RunError, match=r"mine exists already: go on with it by --resume .*mine"):
        create(tmp_path, "mine", config="other")
    assert (tmp_path / "mine" / "config.yaml").read_text() == "seed: 3 # recipe\n"


def test_a_folder_that_is_no_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run folder: it has no run\.db"):
        RunFolder.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_reopened_folder_has_the_written_records(tmp_path: Path, task: Task) -> None:
    with create(tmp_path, "mine") as folder:
        folder.store.begin_trajectory("train", "t0", task, 0, 0)
    with RunFolder.open(tmp_path / "mine") as folder:
        assert list(folder.store.load_recorded("train", 0)) == ["t0"]


def test_a_second_writer_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    create(tmp_path, "mine").close()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "mine")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(RunError, match=rf"mine is in use by process {holder.pid} on {os.uname().nodename}"):
            RunFolder.open(tmp_path / "mine")
        with RunReader(tmp_path / "mine") as reader:
            assert list(reader.trajectories) == []
        holder.kill()
    RunFolder.open(tmp_path / "mine").close()


def test_a_folder_can_be_opened_again_after_opening_failed(tmp_path: Path) -> None:
    create(tmp_path, "mine").close()
    database = tmp_path / "mine" / "run.db"
    content = database.read_bytes()
    database.write_bytes(b"rubbish" * 1000)
    with pytest.raises(RunError, match="not a database"):
        RunFolder.open(tmp_path / "mine")
    database.write_bytes(content)
    RunFolder.open(tmp_path / "mine").close()


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    folder = create(tmp_path)
    folder.close()
    folder.close()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"a part of this path is a file"):
        create(tmp_path / "file" / "runs", "mine")


def test_a_place_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/mine: cannot be written: File exists: a file stands in its place"):
        create(tmp_path / "file", "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_that_is_too_long_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"File name too long: choose a shorter run\.name"):
        create(tmp_path, "n" * 300)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
class TestWithoutPermission:
    @pytest.fixture
    def closed(self, tmp_path: Path, task: Task, make_step: Callable[..., Step]) -> Any:
        with create(tmp_path, "mine") as folder:
            folder.store.begin_trajectory("train", "t0", task, 0, 0)
            folder.store.record_step("t0", make_step())
        for path in (*folder.path.iterdir(), folder.path, tmp_path):
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield folder.path
        for path in (tmp_path, folder.path):
            path.chmod(0o755)

    def test_a_new_folder_is_refused(self, closed: Path) -> None:
        with pytest.raises(RunError, match="Permission denied: choose a folder that you may write to"):
            create(closed.parent, "other")

    def test_going_on_is_refused(self, closed: Path) -> None:
        with pytest.raises(RunError, match="Permission denied"):
            RunFolder.open(closed)

    def test_reading_works(self, closed: Path) -> None:
        with RunReader(closed) as reader:
            assert len(reader.trajectory("t0").steps) == 1


def test_only_run_folders_are_listed_oldest_first(tmp_path: Path) -> None:
    for number, name in enumerate(["b", "a"]):
        folder = create(tmp_path, name)
        folder.close()
        os.utime(folder.path / "config.yaml", (number, number))
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("")
    assert [path.name for path in list_run_folders(tmp_path)] == ["b", "a"]
    assert list_run_folders(tmp_path / "nowhere") == ()


def test_a_run_that_lost_its_config_is_listed_too(tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.db").touch()
    assert list_run_folders(tmp_path) == (tmp_path / "damaged",)
