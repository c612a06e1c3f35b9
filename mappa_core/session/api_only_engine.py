"""The engine of a run whose policies are all behind an API: there are no weights to load, update or store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.protocols import Loss, PolicySpec, Sampler
from mappa_core.records import Process


class ApiOnlyEngine:
    """Implements protocols.Engine without policies, so that no engine has to be installed."""

    deterministic = False
    max_staleness = 0
    straggler_share = 0.0
    processes: Sequence[Process] = ()

    async def open(self, policies: Sequence[PolicySpec], train: Any | None, *, seed: int) -> None: ...

    def sampler(self, policy: str) -> Sampler:
        raise ConfigError(f"{policy} is behind an API: there are no weights here")

    async def score(self, experience: Experience) -> Experience:
        """Fill in the columns of an experience without rows."""
        none = experience.logprobs
        return replace(experience, old_logprobs=none, ref_logprobs=none, values=none)

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        return {}

    async def publish(self) -> Mapping[str, Receipt]:
        return {}

    async def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    async def load(self, folder: Path) -> None: ...

    async def export(self, policy: str, folder: Path) -> None:
        self.sampler(policy)

    async def close(self) -> None: ...
