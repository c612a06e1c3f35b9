"""Records of sent and received weights, and checks that they are equal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import xxhash

from mappa_engine.cluster.errors import SyncError


@dataclass(frozen=True, slots=True, kw_only=True)
class SentWeights:
    """Record of sent weights. `names` and `checksums` are in sending order; `bytes` counts the data sent."""

    policy: str
    version: int
    names: tuple[str, ...]
    checksums: tuple[str, ...]
    bytes: int

    @property
    def checksum(self) -> str:
        """Checksum over all tensors."""
        digest = xxhash.xxh3_128()
        for name, checksum in zip(self.names, self.checksums, strict=True):
            digest.update(f"{name} {checksum}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedWeights:
    """Record of the weights that an engine loaded: tensor names with checksums of the received data, in loading order,
    tied ones twice. `version` is the engine's own report of the version that labels its tokens."""

    names: tuple[str, ...]
    checksums: tuple[str, ...]
    version: int
    seconds: float


def check_sent(sent: SentWeights, expected: Collection[str]) -> None:
    """Raise SyncError unless exactly the tensors of the model were sent, each once.

    An engine would silently use old weights, or uninitialised memory, for missing tensors.
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


def check_received(sent: SentWeights, received: ReceivedWeights, tied: Mapping[str, str], *, engine: str) -> None:
    """Raise SyncError unless `engine` received exactly what was sent, in order and under the same version.

    `tied` maps a sent name to the second name under which its tensor is loaded.
    """
    where = f"policy {sent.policy!r}, version {sent.version}, engine {engine!r}"
    wanted = [
        (loaded, checksum)
        for name, checksum in zip(sent.names, sent.checksums, strict=True)
        for loaded in (name, *([tied[name]] if name in tied else []))
    ]
    arrived = list(zip(received.names, received.checksums, strict=True))
    for index, (expected, actual) in enumerate(zip_longest(wanted, arrived)):
        if actual == expected:
            continue
        if actual is None:
            raise SyncError(f"{where}: {expected[0]} did not arrive ({len(wanted) - index} of {len(wanted)} missing)")
        if expected is None or actual[0] != expected[0]:
            instead = "nothing" if expected is None else expected[0]
            raise SyncError(f"{where}: {actual[0]} arrived where {instead} was sent")
        raise SyncError(f"{where}: {actual[0]} arrived damaged: checksum {actual[1]}, sent with {expected[1]}")
    if received.version != sent.version:
        raise SyncError(f"{where}: the engine labels its tokens with version {received.version}")
