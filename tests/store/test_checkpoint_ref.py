"""RUN@best, RUN@last, RUN@12 and RUN/POLICY@…"""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from mappa.store.checkpoint import BestCheckpoint
from mappa.store.checkpoint_ref import resolve_checkpoint
from mappa.store.folder import RunFolder
from mappa_core import RunError


@pytest.fixture
def url() -> str:
    return f"memory://{uuid4().hex}"


@pytest.fixture
def root(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, `first` with a best checkpoint and copies at a URL."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "runs"
    for name, place in (("first", url), ("second", None)):
        config = f"checkpoint: {{url: {place}}}\n" if place else "seed: 1\n"
        with RunFolder.create(root, name, plugin="p", recipe="r", config=config, url=place) as folder:
            for iteration in (2, 4, 12):
                with folder.checkpoints.new_checkpoint(iteration, seed=0, coach={}, estimator={}) as inside:
                    (inside / "policies").write_text(name)
                folder.checkpoints.copy_to_mirror(iteration)
            if name == "first":
                folder.checkpoints.keep_best(BestCheckpoint(iteration=4, metric="correct", value=0.5))
    return root


@pytest.mark.parametrize(
    ("text", "iteration", "policy"),
    [("best", 4, None), ("last", 12, None), ("2", 2, None), ("POLICY@best", 4, "solver")],
)
@pytest.mark.parametrize("place", ["name", "path", "url"])
def test_a_checkpoint_is_found_by_name_path_and_url(root, url, text, iteration, policy, place) -> None:
    run = {"name": "first", "path": f"{root}/first", "url": f"{url}/first"}[place]
    which = text.removeprefix("POLICY@")
    named = resolve_checkpoint(f"{run}{'/solver' if policy else ''}@{which}", root=root)
    assert named.checkpoint.manifest.iteration == iteration
    assert (named.checkpoint.path / "policies").read_text() == "first"
    assert named.policy == policy
    assert resolve_checkpoint(named.exact, root=root).checkpoint.manifest.iteration == iteration
    assert named.exact.endswith(f"@{iteration}")


def test_lost_checkpoint_is_fetched_from_the_url_of_the_run(root) -> None:
    shutil.rmtree(root / "first" / "checkpoints")
    assert resolve_checkpoint("first@best", root=root).checkpoint.path == root / "first" / "checkpoints" / "000004"


def test_a_copy_from_elsewhere_is_kept_and_follows_its_source(root, url, tmp_path) -> None:
    found = resolve_checkpoint(f"{url}/first@last", root=tmp_path).checkpoint
    assert found.path.is_relative_to(tmp_path / "cache" / "mappa")
    with RunFolder.open(root / "first", url=url) as folder:
        with folder.checkpoints.new_checkpoint(20, seed=0, coach={}, estimator={}) as inside:
            (inside / "policies").write_text("first")
        folder.checkpoints.copy_to_mirror(20)
        folder.checkpoints.keep_best(BestCheckpoint(iteration=20, metric="correct", value=0.9))
    assert resolve_checkpoint(f"{url}/first@last", root=tmp_path).checkpoint.manifest.iteration == 20
    assert resolve_checkpoint(f"{url}/first@best", root=tmp_path).checkpoint.manifest.iteration == 20
    with RunFolder.open(root / "first", url=url) as folder:
        with folder.checkpoints.new_checkpoint(20, seed=0, coach={}, estimator={}) as inside:
            (inside / "policies").write_text("once more")
        folder.checkpoints.copy_to_mirror(20)
    again = resolve_checkpoint(f"{url}/first@20", root=tmp_path).checkpoint
    assert (again.path / "policies").read_text() == "once more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first", "names no checkpoint: write RUN@best"),
        ("first@finest", "names no checkpoint"),
        ("@best", "names no checkpoint"),
        ("third@best", "there is no run third, neither as a path nor in"),
        ("first@3", "no checkpoint of iteration 3; checkpoints of other iterations: 2, 4, 12"),
        ("second@best", r"did not keep its best checkpoint .* iterations 2, 4, 12"),
        ("memory://none/run@last", "there is no run memory://none/run"),
    ],
)
def test_missing_run_or_checkpoint_is_named(root, text, message) -> None:
    with pytest.raises(RunError, match=message):
        resolve_checkpoint(text, root=root)
