from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mappa.runs import RunReader
from mappa.store.checkpoint import Checkpoints
from mappa.store.folder import RunFolder
from mappa_core import RunError, Task


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def write(checkpoints: Checkpoints, iteration: int, weights: bytes = b"weights", **state: Any) -> None:
    with checkpoints.new_checkpoint(iteration, **{"seed": 7, "coach": {}, "estimator": {}, **state}) as folder:
        (folder / "policies" / "solver").mkdir(parents=True)
        (folder / "policies" / "solver" / "model.safetensors").write_bytes(weights)
        (folder / "policies" / "random.json").write_text("[1]")


def test_a_checkpoint_comes_back_with_its_files_and_state(checkpoints: Checkpoints) -> None:
    state = {"coach": {"rules": {"mean": math.nan, "@": ["@x"]}}, "estimator": {"mean": 0.1}}
    write(checkpoints, 12, **state)
    loaded = checkpoints.load(12)
    assert loaded.path == checkpoints.folder / "000012"
    assert (loaded.path / "policies" / "solver" / "model.safetensors").read_bytes() == b"weights"
    manifest = loaded.manifest
    assert (manifest.schema, manifest.iteration, manifest.seed) == (1, 12, 7)
    assert math.isnan(manifest.coach["rules"]["mean"])
    assert manifest.coach["rules"]["@"] == ["@x"]
    assert manifest.estimator == {"mean": 0.1}
    assert "numpy" in manifest.versions
    assert list(manifest.files) == ["policies/random.json", "policies/solver/model.safetensors"]
    entry = manifest.files["policies/solver/model.safetensors"]
    assert (entry.size, entry.sha256) == (7, hashlib.sha256(b"weights").hexdigest())


def test_latest_checkpoint_is_found_and_older_checkpoints_are_pruned(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest_iteration() is None
    for iteration in (2, 10, 4, 1_000_000, 6):
        write(checkpoints, iteration)
    assert checkpoints.iterations() == (2, 4, 6, 10, 1_000_000)
    assert checkpoints.latest_iteration() == 1_000_000
    checkpoints.prune(keep=2)
    assert checkpoints.iterations() == (10, 1_000_000)
    checkpoints.prune(keep=5)
    assert checkpoints.iterations() == (10, 1_000_000)
    assert not [path for path in checkpoints.folder.iterdir() if path.name.startswith(".")]
    with pytest.raises(ValueError, match="at least one"):
        checkpoints.prune(keep=0)


def test_failed_checkpoint_leaves_nothing_and_keeps_the_older_checkpoint(checkpoints: Checkpoints) -> None:
    write(checkpoints, 1, b"old")
    with pytest.raises(ZeroDivisionError), checkpoints.new_checkpoint(1, seed=7, coach={}, estimator={}) as folder:
        (folder / "half").write_text("")
        raise ZeroDivisionError
    assert [path.name for path in checkpoints.folder.iterdir()] == ["000001"]
    assert checkpoints.load(1).manifest.files["policies/solver/model.safetensors"].size == 3


def test_a_checkpoint_of_the_same_iteration_is_replaced(checkpoints: Checkpoints) -> None:
    write(checkpoints, 1, b"old")
    write(checkpoints, 1, b"newer")
    assert checkpoints.load(1).manifest.files["policies/solver/model.safetensors"].size == 5
    assert [path.name for path in checkpoints.folder.iterdir()] == ["000001"]


def test_unknown_iteration_is_an_error_that_lists_the_iterations(checkpoints: Checkpoints) -> None:
    with pytest.raises(RunError, match="no checkpoint of iteration 3; there is no other checkpoint"):
        checkpoints.load(3)
    write(checkpoints, 1)
    write(checkpoints, 2)
    with pytest.raises(RunError, match="no checkpoint of iteration 3; checkpoints of other iterations: 1, 2"):
        checkpoints.load(3)


def corrupt(path: Path) -> None:
    path.write_bytes(b"w3ights")


def truncate(path: Path) -> None:
    path.write_bytes(b"weight")


@pytest.mark.parametrize(
    ("damage", "complaint"), [(corrupt, "is damaged"), (truncate, "is damaged"), (Path.unlink, "is missing")]
)
def test_a_damaged_file_is_named_and_not_loaded(checkpoints: Checkpoints, damage: Any, complaint: str) -> None:
    write(checkpoints, 1)
    write(checkpoints, 2)
    damage(checkpoints.folder / "000002" / "policies" / "solver" / "model.safetensors")
    with pytest.raises(RunError, match=rf"000002/policies/solver/model\.safetensors {complaint}.*iterations: 1$"):
        checkpoints.load(2)
    assert checkpoints.load(1).manifest.iteration == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', '{"schema": "one"}'])
def test_a_damaged_manifest_is_named(checkpoints: Checkpoints, text: str) -> None:
    write(checkpoints, 2)
    (checkpoints.folder / "000002" / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=r"000002/manifest\.json is damaged"):
        checkpoints.load(2)


def test_a_missing_manifest_is_named(checkpoints: Checkpoints) -> None:
    write(checkpoints, 2)
    (checkpoints.folder / "000002" / "manifest.json").unlink()
    with pytest.raises(RunError, match=r"000002/manifest\.json is missing"):
        checkpoints.load(2)


def test_a_manifest_of_another_schema_is_refused_whatever_else_it_holds(checkpoints: Checkpoints) -> None:
    write(checkpoints, 2)
    (checkpoints.folder / "000002" / "manifest.json").write_text(json.dumps({"schema": 2, "files": "elsewhere"}))
    with pytest.raises(RunError, match="has schema 2, and this version of Mappa reads schema 1"):
        checkpoints.load(2)


def test_records_are_durable_before_a_checkpoint_is_there(tmp_path: Path, task: Task) -> None:
    scratch = tmp_path / "scratch"
    with RunFolder.create(tmp_path, "mine", plugin="p", recipe="r", config="", scratch=scratch) as run:
        run.store.begin_trajectory("train", "t0", task, 0, 0)
        write(run.checkpoints, 1)
        with RunReader(run.path) as reader:
            assert reader.counts() == {"open": 1}


def test_unfinished_checkpoint_of_a_killed_writer_is_removed_on_resume(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "mine", plugin="p", recipe="r", config="") as run:
        write(run.checkpoints, 1)
    code = (
        "import os, sys; from pathlib import Path; from mappa.store.folder import RunFolder\n"
        "run = RunFolder.open(Path(sys.argv[1]))\n"
        "with run.checkpoints.new_checkpoint(2, seed=0, coach={}, estimator={}) as folder:\n"
        "    (folder / 'half').write_text('x'); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(run.path)], check=False).returncode == -9
    left = [path.name for path in (run.path / "checkpoints").iterdir()]
    assert len(left) == 2
    assert Checkpoints(run.path / "checkpoints").latest_iteration() == 1
    with RunFolder.open(run.path):
        assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["000001"]


def test_full_disk_during_a_checkpoint_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from mappa_core.errors import RunError; from mappa.store.checkpoint import Checkpoints\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try:\n"
        "    with Checkpoints(Path(sys.argv[1])).new_checkpoint(2, seed=0, coach={}, estimator={}) as folder:\n"
        "        (folder / 'weights').write_bytes(bytes(20_000))\n"
        "except RunError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_hashed_while_it_was_written_is_not_read_again(checkpoints: Checkpoints) -> None:
    with checkpoints.new_checkpoint(1, seed=7, coach={}, estimator={}) as folder:
        for name in ("hashed", "other"):
            (folder / name).write_bytes(name.encode())
        (folder / "hashed.sha256").write_text(f"{hashlib.sha256(b'another').hexdigest()}  hashed\n")
    files = json.loads((checkpoints.path(1) / "manifest.json").read_text())["files"]
    assert files.keys() == {"hashed", "other"}
    assert files["hashed"] == {"size": 6, "sha256": hashlib.sha256(b"another").hexdigest()}
    assert files["other"]["sha256"] == hashlib.sha256(b"other").hexdigest()
    with pytest.raises(RunError, match="hashed is damaged"):
        checkpoints.load(1)


@pytest.mark.parametrize("name", ["policies/solver/model-00001.safetensors", "more", "policies/other/state.json"])
def test_a_file_that_the_manifest_does_not_name_is_refused(checkpoints: Checkpoints, name: str) -> None:
    write(checkpoints, 1)
    (checkpoints.path(1) / name).parent.mkdir(exist_ok=True)
    (checkpoints.path(1) / name).write_bytes(b"more")
    with pytest.raises(RunError, match=f"{name} is not in the manifest of its checkpoint"):
        checkpoints.load(1)


@pytest.mark.parametrize("policy", ["../../out", "/etc", "", "a/../b", ".."])
def test_a_policy_whose_name_is_a_path_is_refused(checkpoints: Checkpoints, policy: str) -> None:
    write(checkpoints, 1)
    manifest = checkpoints.path(1) / "manifest.json"
    stated = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**stated, "policies": {policy: {"kind": "full", "model": "m"}}}))
    with pytest.raises(RunError, match="no file of a checkpoint"):
        checkpoints.load(1)


@pytest.mark.parametrize("place", ["policies", "policies/solver", "policies/random.json", "manifest.json", "."])
def test_no_link_in_a_checkpoint_is_followed(checkpoints: Checkpoints, tmp_path: Path, place: str) -> None:
    write(checkpoints, 1)
    path = checkpoints.path(1) / place
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(RunError, match=r"symbolic link|no file or folder that can be read"):
        checkpoints.load(1)
