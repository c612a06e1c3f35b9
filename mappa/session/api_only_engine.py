"""The engine of a run whose policies are all behind an API: there are no weights to load, update or store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.protocols import Engine, Loss, PolicySpec, Sampler


class ApiOnlyEngine(Engine):
    """Implements protocols.Engine without policies, so that no engine has to be installed."""

    async def open(self, policies: Sequence[PolicySpec], train: Any | None, *, seed: int) -> None: ...

    def sampler(self, policy: str) -> Sampler:
        raise ConfigError(f"{policy} is behind an API: there are no weights here")

    async def score(self, experience: Experience) -> Experience:
        none = experience.logprobs  # there are no rows
        return replace(experience, old_logprobs=none, ref_logprobs=none, values=none)

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        return {}

    async def publish(self) -> Mapping[str, Receipt]:
        return {}

    async def save(self, folder: Path, *, dtype: str = "float32") -> None:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)

    async def load(self, folder: Path) -> None: ...

    async def close(self) -> None: ...
