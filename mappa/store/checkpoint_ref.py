"""Checkpoint references: RUN@best, RUN@last, RUN@12, or RUN/POLICY@… for one policy of a run.

RUN is a run folder, the name of one in `run.root`, or a URL to which a run's checkpoints are copied.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mappa.config.yaml_io import MAX_CONFIG_BYTES, parse_yaml
from mappa.store.checkpoint import POLICIES, Checkpoint, Checkpoints, RemoteCheckpoints
from mappa.store.folder import CHECKPOINTS, CONFIG, open_checkpoints
from mappa.store.marks import is_trusted
from mappa.store.mirror import Mirror
from mappa_core.config.layers import SettingsNode
from mappa_core.errors import RunError
from mappa_core.files import has_file, read_text

_HOW = "write RUN@best, RUN@last or RUN@ITERATION, for example runs/first@best"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCheckpoint:
    """The checkpoint of a reference, and the settings of its run; `policy` is None if the reference names no policy.
    `exact` is a reference by iteration, which stays valid when the run continues."""

    checkpoint: Checkpoint
    settings: SettingsNode
    policy: str | None
    exact: str

    def weights(self, policy: str) -> Path:
        """Folder of what the engine saved of a policy."""
        return self.checkpoint.path / POLICIES / policy


def resolve_checkpoint(text: str, *, root: Path) -> ResolvedCheckpoint:
    """Resolve a reference and verify every file of the checkpoint. `root` is the folder of runs given by name alone.

    Raises RunError if the reference is malformed, or there is no such run or checkpoint.
    """
    run, _, which = text.rpartition("@")
    if not run or not (which in ("best", "last") or which.isdecimal()):
        raise RunError(f"{text!r} names no checkpoint: {_HOW}")
    for place, policy in _interpretations(run):
        found = _open_checkpoints(place, root)
        if found is not None:
            checkpoints, settings, unasked = found
            try:
                checkpoint = checkpoints.load(_resolve_iteration(checkpoints, which, place))
            except RunError as error:
                if unasked is None:
                    raise
                raise RunError(
                    f"{error}. The copies that its config names were not asked for, as the run was not made here by "
                    f"you: name them yourself, as {unasked}@{which}"
                ) from error
            exact = f"{run}@{checkpoint.manifest.iteration}"
            return ResolvedCheckpoint(checkpoint=checkpoint, settings=settings, policy=policy, exact=exact)
    raise RunError(f"{text!r}: there is no run {run}, neither as a path nor in {root}")


def _interpretations(run: str) -> Iterator[tuple[str, str | None]]:
    """Yield the possible meanings of a text: a run, or a run and one of its policies."""
    yield run, None
    place, slash, policy = run.rpartition("/")
    if slash and place and policy:
        yield place, policy


def _open_checkpoints(place: str, root: Path) -> tuple[Checkpoints, SettingsNode, str | None] | None:
    """Open the checkpoints of a run and read its settings; None if there is no such run. With them comes the address of
    copies that were left aside, because a stranger's config names it."""
    if "://" in place:
        mirror = Mirror(place)
        # Cached by a hash of the whole URL, which may hold characters that no name of a folder may.
        name = hashlib.sha256(mirror.url.encode()).hexdigest()[:32]
        stored = mirror.read(CONFIG)
        if stored is None:
            return None
        settings = parse_yaml(stored.decode("utf-8"), mirror.url)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mappa"
        return RemoteCheckpoints(cache / CHECKPOINTS / name, mirror), settings, None
    for folder in (Path(place).expanduser(), root / place):
        if has_file(folder, CONFIG):
            text = read_text(folder, CONFIG, max_bytes=MAX_CONFIG_BYTES)
            settings = parse_yaml(text, str(folder / CONFIG))
            node = settings.at("checkpoint.url")
            url = None if node is None else node.plain
            if url is None or is_trusted(folder / CONFIG, text):
                return open_checkpoints(folder, url), settings, None
            return open_checkpoints(folder, None), settings, f"{url}/{folder.resolve().name}"
    return None


def _resolve_iteration(checkpoints: Checkpoints, which: str, run: str) -> int:
    if which.isdecimal():
        return int(which)
    if which == "last":
        latest = checkpoints.latest_iteration()
        if latest is None:
            raise RunError(f"{run} has no checkpoint: it ended before it wrote its first")
        return latest
    best = checkpoints.best()
    if best is None:
        there = ", ".join(str(iteration) for iteration in checkpoints.iterations()) or "none"
        raise RunError(
            f"{run} did not keep its best checkpoint (checkpoint.best=true does, with eval.every); it has those of "
            f"iterations {there}: name one as @ITERATION, or @last"
        )
    return best.iteration
