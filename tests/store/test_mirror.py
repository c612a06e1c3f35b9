"""Copies of checkpoints at a URL."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from mappa.store.checkpoint import BestCheckpoint, Checkpoints
from mappa.store.folder import RunFolder
from mappa.store.mirror import Mirror
from mappa_core import ConfigError, RunError


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path: Path) -> str:
    return f"memory://{uuid4().hex}/runs" if request.param == "memory" else f"file://{tmp_path}/elsewhere/runs"


@pytest.fixture
def checkpoints(tmp_path: Path, url: str) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", mirror=Mirror(url, pauses=()))


def write(checkpoints: Checkpoints, iteration: int, weights: bytes = b"weights") -> None:
    with checkpoints.new_checkpoint(iteration, seed=7, coach={}, estimator={}) as folder:
        (folder / "policies" / "solver").mkdir(parents=True)
        (folder / "policies" / "solver" / "model.safetensors").write_bytes(weights)
    checkpoints.copy_to_mirror(iteration)


def lose(checkpoints: Checkpoints) -> None:
    shutil.rmtree(checkpoints.folder)


def file_at(url: str, name: str):
    files, root = fsspec.core.url_to_fs(url)
    return files, f"{root}/{name}"


def test_lost_checkpoint_is_read_from_the_mirror(checkpoints: Checkpoints) -> None:
    for iteration in (2, 4):
        write(checkpoints, iteration, b"%d" % iteration)
    lose(checkpoints)
    assert checkpoints.iterations() == (2, 4)
    last = checkpoints.load_latest()
    assert last.manifest.iteration == 4
    assert (last.path / "policies/solver/model.safetensors").read_bytes() == b"4"
    assert checkpoints.iterations() == (4,)
    assert checkpoints.load(2).manifest.iteration == 2
    assert not [path for path in checkpoints.folder.iterdir() if path.name.startswith(".")]


def test_a_checkpoint_that_was_never_copied_is_copied_with_the_next(checkpoints: Checkpoints) -> None:
    mirror, checkpoints.mirror = checkpoints.mirror, None
    write(checkpoints, 1)
    checkpoints.mirror = mirror
    write(checkpoints, 2)
    lose(checkpoints)
    assert checkpoints.iterations() == (1, 2)


def test_incomplete_copy_is_no_checkpoint(checkpoints: Checkpoints, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(checkpoints, 1)
    put, names = Mirror._put, []

    def put_one(self: Mirror, file: Path, name: str) -> None:
        names.append(name)
        if len(names) == 2:
            raise RunError("killed")
        put(self, file, name)

    monkeypatch.setattr(Mirror, "_put", put_one)
    with pytest.raises(RunError, match="killed"):
        write(checkpoints, 1, b"other")  # over an older one, which counts no longer either
    assert [name.rpartition("/")[2] for name in names] == ["model.safetensors", "manifest.json"]
    lose(checkpoints)
    assert checkpoints.iterations() == ()
    with pytest.raises(RunError, match="no checkpoint of iteration 1"):
        checkpoints.load(1)


@pytest.mark.parametrize("damage", ["changed", "gone", "outside"])
def test_a_damaged_copy_is_found_and_leaves_nothing(checkpoints: Checkpoints, url: str, damage: str) -> None:
    write(checkpoints, 1)
    lose(checkpoints)
    files, weights = file_at(url, "000001/policies/solver/model.safetensors")
    if damage == "changed":
        files.pipe_file(weights, b"weighst")
    elif damage == "gone":
        files.rm(weights)
    else:
        _, path = file_at(url, "000001/manifest.json")
        manifest = json.loads(files.cat_file(path))
        manifest["files"]["../../evil"] = {"size": 1, "sha256": ""}
        files.pipe_file(path, json.dumps(manifest).encode())
    with pytest.raises(RunError, match="000001 cannot be used"):
        checkpoints.load(1)
    assert list(checkpoints.folder.iterdir()) == []


def test_pruning_keeps_the_best_checkpoint_in_folder_and_mirror(checkpoints: Checkpoints, url: str) -> None:
    for iteration in (1, 2, 3, 4):
        write(checkpoints, iteration)
    assert checkpoints.best() is None
    checkpoints.keep_best(BestCheckpoint(iteration=2, metric="correct", value=0.5))
    checkpoints.prune(keep=1)
    assert checkpoints.iterations() == (2, 4)
    with pytest.raises(ValueError, match="iteration 3"):
        checkpoints.keep_best(BestCheckpoint(iteration=3, metric="correct", value=0.5))
    lose(checkpoints)
    assert checkpoints.iterations() == (2, 4)
    assert checkpoints.best() == BestCheckpoint(iteration=2, metric="correct", value=0.5)


def test_failing_mirror_is_retried_and_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid4().hex}"
    failures = [ConnectionError("reset by peer")] * 2
    write_file = Mirror._pipe

    def write_badly(self: Mirror, name: str, data: bytes) -> None:
        if failures:
            raise failures.pop()
        write_file(self, name, data)

    monkeypatch.setattr(Mirror, "_pipe", write_badly)
    Mirror(url, pauses=(0.0, 0.0)).write("a", b"1")
    assert Mirror(url).read("a") == b"1"
    failures += [ConnectionError("reset by peer")] * 3
    with pytest.raises(RunError, match=f"{url}: .*reset by peer"):
        Mirror(url, pauses=(0.0, 0.0)).write("a", b"2")


@pytest.mark.parametrize("url", ["nowhere://bucket/runs", "s3fs-is-not-a-scheme://x"])
def test_mirror_of_an_unknown_protocol_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be reached"):
        RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config="{}", url=url)
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_does_not_take_the_place_of_another(tmp_path: Path, url: str) -> None:
    def create(root: str) -> RunFolder:
        return RunFolder.create(tmp_path / root, "run", plugin="p", recipe="r", config="a: 1\n", url=url)

    create("one").close()
    with pytest.raises(RunError, match=r"/run holds checkpoints of another run: choose another run\.name"):
        create("two")
    assert list((tmp_path / "two").iterdir()) == []
