"""Interfaces for judging: coaches, cassettes and provider transports."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from mappa_core.protocols.drift import DriftReport
from mappa_core.protocols.workflow import Bench
from mappa_core.records import Message, Scene, Trajectory, Usage, Verdict


class Coach(ABC):
    """Judges steps. `score` may read the coach's state but must not write it, as concurrent scoring must not depend on
    order; `learn` updates it once per iteration, in the driver process."""

    @abstractmethod
    async def score(self, scene: Scene) -> Verdict:
        """Judge `scene.step`. An exception becomes a `failed` verdict."""

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        """Judge actions of one finished trajectory, of which some may show the truth: a verdict per scene, in order."""
        return await asyncio.gather(*(self.score(scene) for scene in scenes))

    @property
    def by_trajectory(self) -> bool:
        """Whether live verdicts come from one `review` at the end of a trajectory instead of one `score` per action."""
        return False

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Providers that the coach calls: everything it is shown is sent to them."""
        return ()

    @property
    def fitted_on(self) -> Collection[str]:
        """Hashes (`Task.question_hash`) of questions on whose labels it was fitted, so that they cannot certify it."""
        return ()

    def use_cassette(self, cassette: Cassette) -> None:
        """Look up verdicts in `cassette` before calling a provider, and store new ones. Called once, at the start."""

    def open_batches(self, folder: Path) -> None:
        """Record batches of calls in `folder`. Called at the start."""

    def set_bench(self, bench: Bench) -> None:
        """Set the `bench` that runs the coach's programs. Called once, at the start."""

    def learn(self, trajectories: Sequence[Trajectory]) -> DriftReport | None:
        """Update the state from the trajectories of one iteration, which hold this coach's own verdicts. Return what it
        has to report of itself; None if nothing. A ConfigError stops the run: an option fits no action."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    async def close(self) -> None:
        """Release connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """External LLM provider: offer (`gemini`), model, host, whether its price is known, its calls are `batched`, and
    each `reserves` its cost under the cap; others are counted by the usage of the verdict that they served."""

    name: str
    model: str
    host: str
    priced: bool
    batched: bool = False
    reserves: bool = False


class Cassette(Protocol):
    """Store of verdicts by the content address of the request."""

    def get(self, address: str) -> Verdict | None:
        """Return the verdict at `address`, None to call the provider. Raises CoachError if replay mode lacks it."""

    def put(self, address: str, verdict: Verdict) -> None:
        """Store a verdict that is not `failed`."""


ReplyFormat = Literal["schema", "json", "text"]
"""Required format of a reply: JSON that matches a schema, any JSON object, or text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request of one provider call. `messages` may begin with one of role `system`; the others alternate between `user`
    and `assistant`. `schema` is a JSON schema in the portable subset, required for `answer="schema"`. `max_tokens`
    bounds the reply, thinking included. None for `temperature` or `seed` means the provider's default. Requests with
    the same `cache_key` share a prefix, for the provider's prompt cache. `timeout_s` bounds the whole call in
    seconds. `address` is equal where the same is asked, whatever the marks of the fences; None: of the messages."""

    messages: tuple[Message, ...]
    answer: ReplyFormat = "text"
    schema: Mapping[str, Any] | None = None
    max_tokens: int = 2048
    temperature: float | None = None
    seed: int | None = None
    cache_key: str | None = None
    timeout_s: float = 60.0
    address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Reply of a provider. `stop`: `end`, it finished; `length`, it was cut off at its token limit (which thinking may
    have used up); `blocked`, the provider or the model refused. `detail` is the provider's own term and reason for it;
    `model` is as the provider reported it; `raw` is the reply as received. `usage` is None if it was not reported."""

    text: str
    stop: Literal["end", "length", "blocked"]
    model: str
    raw: str
    usage: Usage | None = None
    detail: str = ""


class Transport(Protocol):
    """Client of one provider. Core derives a coach and an `api` policy of the same name from it."""

    @property
    def model(self) -> str:
        """Model name, as given in the recipe."""

    @property
    def host(self) -> str:
        """Human-readable host of the server."""

    async def complete(self, request: Request) -> Reply:
        """Make one call without retries, which are up to the caller. Raises CallError if there is no reply."""

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Count the tokens of `messages` with the provider's free counter; None if it has none."""

    async def close(self) -> None: ...
