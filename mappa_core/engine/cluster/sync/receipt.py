"""What was sent and what arrived, and the proof that the one is the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import xxhash

from mappa_core.errors import SyncError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a learner sent. `names` and `checksums` in the order of sending; `bytes` without what lies between."""

    policy: str
    version: int
    names: tuple[str, ...]
    checksums: tuple[str, ...]
    bytes: int

    @property
    def checksum(self) -> str:
        """One for all tensors."""
        digest = xxhash.xxh3_128()
        for name, checksum in zip(self.names, self.checksums, strict=True):
            digest.update(f"{name} {checksum}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What an engine loaded, in order: names of tensors with the checksums of what lay before it, tied ones twice.
    `version` is what it labels its tokens with from now on, as the engine itself says."""

    names: tuple[str, ...]
    checksums: tuple[str, ...]
    version: int
    seconds: float


def check_sent(sent: Sent, expected: Collection[str]) -> None:
    """Raise SyncError unless exactly the tensors of the model were sent, each once.

    An engine serves what is missing from older weights, or from memory that was never written, without an error.
    """
    where = f"policy {sent.policy!r}, version {sent.version}"
    if len(set(sent.names)) < len(sent.names):
        twice = next(name for name in sent.names if sent.names.count(name) > 1)
        raise SyncError(f"{where}: the learner sent {twice} more than once")
    names = set(sent.names)
    if missing := [name for name in expected if name not in names]:
        raise SyncError(f"{where}: the learner did not send {missing[0]} ({len(missing)} missing of {len(expected)})")
    if unknown := [name for name in sent.names if name not in set(expected)]:
        raise SyncError(f"{where}: the learner sent {unknown[0]}, which the model does not have")


def check(sent: Sent, received: Received, tied: Mapping[str, str], *, engine: str) -> None:
    """Raise SyncError unless what `engine` received is what was sent, in its order and under its version.

    `tied` are names that the engine loads from the tensor of another, by that other's name.
    """
    where = f"policy {sent.policy!r}, version {sent.version}, engine {engine!r}"
    wanted = [
        (one, checksum)
        for name, checksum in zip(sent.names, sent.checksums, strict=True)
        for one in (name, *([tied[name]] if name in tied else []))
    ]
    arrived = list(zip(received.names, received.checksums, strict=True))
    for place, (expected, found) in enumerate(zip_longest(wanted, arrived)):
        if found == expected:
            continue
        if found is None:
            raise SyncError(f"{where}: {expected[0]} did not arrive ({len(wanted) - place} of {len(wanted)} missing)")
        if expected is None or found[0] != expected[0]:
            instead = "nothing" if expected is None else expected[0]
            raise SyncError(f"{where}: {found[0]} arrived where {instead} was sent")
        raise SyncError(f"{where}: {found[0]} arrived damaged: checksum {found[1]}, sent with {expected[1]}")
    if received.version != sent.version:
        raise SyncError(f"{where}: the engine labels its tokens with version {received.version}")
