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
        raise ConfigError(f"policies.{policy}: all policies of this run are behind an API, so no engine has weights")

    async def score(self, experience: Experience, *, reference: bool = True) -> Experience:
        # Rows have tokens, which policies behind an API lack, so there are none: any empty column will do.
        empty = experience.logprobs
        return replace(experience, old_logprobs=empty, ref_logprobs=empty, values=empty)

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
