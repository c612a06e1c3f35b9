"""Checkpoints as people name them: RUN@best, RUN@last, RUN@12, or RUN/POLICY@… for one policy of a run.

RUN is a run folder, the name of one in `run.root`, or a URL that a run's checkpoints are copied to.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mappa_core.config.text import read_yaml
from mappa_core.errors import RunError
from mappa_core.store.checkpoint import Checkpoint, Checkpoints, Fetched
from mappa_core.store.folder import CHECKPOINTS, CONFIG, checkpoints_of
from mappa_core.store.mirror import Mirror

_HOW = "write RUN@best, RUN@last or RUN@ITERATION, for example runs/first@best"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The checkpoint that a text names; `policy` is None where it names no policy. `exact` names the same one whatever
    becomes of the run."""

    checkpoint: Checkpoint
    policy: str | None
    exact: str


def find(text: str, *, root: Path) -> Named:
    """The checkpoint that `text` names, every file checked. `root` is the folder of runs that are named alone.

    Raises RunError where the text, the run or the checkpoint in it makes no sense.
    """
    run, _, which = text.rpartition("@")
    if not run or not (which in ("best", "last") or which.isdecimal()):
        raise RunError(f"{text!r} names no checkpoint: {_HOW}")
    for place, policy in _readings(run):
        checkpoints = _checkpoints(place, root)
        if checkpoints is not None:
            checkpoint = checkpoints.load(_iteration(checkpoints, which, place))
            return Named(checkpoint=checkpoint, policy=policy, exact=f"{run}@{checkpoint.manifest.iteration}")
    raise RunError(f"{text!r}: there is no run {run}, neither as a path nor in {root}")


def cache_folder() -> Path:
    """Where copies of what lies elsewhere are kept on this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mappa"


def _readings(run: str) -> Iterator[tuple[str, str | None]]:
    """What a text may mean: a run, or a run and one of its policies."""
    yield run, None
    place, slash, policy = run.rpartition("/")
    if slash and place and policy:
        yield place, policy


def _checkpoints(place: str, root: Path) -> Checkpoints | None:
    """The checkpoints of a run; None where there is no such run."""
    if "://" in place:
        mirror = Mirror(place)
        name = hashlib.sha256(mirror.url.encode()).hexdigest()[:32]
        there = mirror.read(CONFIG) is not None
        return Fetched(cache_folder() / CHECKPOINTS / name, mirror) if there else None
    for folder in (Path(place).expanduser(), root / place):
        if (folder / CONFIG).is_file():
            url = read_yaml((folder / CONFIG).read_text("utf-8"), str(folder / CONFIG)).at("checkpoint.url")
            return checkpoints_of(folder, None if url is None else url.plain)
    return None


def _iteration(checkpoints: Checkpoints, which: str, run: str) -> int:
    if which.isdecimal():
        return int(which)
    if which == "last":
        latest = checkpoints.latest()
        if latest is None:
            raise RunError(f"{run} has no checkpoint: it did not come to its first")
        return latest
    best = checkpoints.best()
    if best is None:
        there = ", ".join(str(iteration) for iteration in checkpoints.iterations()) or "none"
        raise RunError(
            f"{run} did not keep its best checkpoint (checkpoint.best=true does, with eval.every); it has those of "
            f"iterations {there}: name one as @ITERATION, or @last"
        )
    return best.iteration
