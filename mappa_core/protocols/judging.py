"""Who judges: coaches, and the providers that they ask."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mappa_core.protocols.acting import Bench
from mappa_core.records import Message, Scene, Trajectory, Usage, Verdict


class Coach(ABC):
    """Judges steps. Only `score` has to be written.

    `score` may read the coach's state but never writes it: concurrent scoring must not depend on order. State is
    learned in `learn`, once an iteration, on the driver.
    """

    @abstractmethod
    async def score(self, scene: Scene) -> Verdict:
        """Judge `scene.step`. An exception becomes a `failed` verdict."""

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        """Judge several actions of one finished trajectory together: a verdict per scene, in order."""
        return await asyncio.gather(*(self.score(scene) for scene in scenes))

    @property
    def by_trajectory(self) -> bool:
        """Whether live verdicts are asked for with one `review` when a trajectory ends, not action by action."""
        return False

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Whom the coach asks: everything it is shown leaves for them."""
        return ()

    def keep_on(self, cassette: Cassette) -> None:
        """Look verdicts up on `cassette` before a provider is asked, and keep them there. Called once, at the start."""

    def equip(self, bench: Bench) -> None:
        """Take `bench` to run programs on. Called once, at the start."""

    def learn(self, trajectories: Sequence[Trajectory]) -> None:
        """Update the state from one iteration."""

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""

    async def close(self) -> None:
        """Release connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Someone outside who is asked: the name of the offer (`gemini`), the `model`, where its server stands (`host`),
    and whether the price of its tokens is known."""

    name: str
    model: str
    host: str
    priced: bool


class Cassette(Protocol):
    """Verdicts by the content address of what was asked."""

    def get(self, address: str) -> Verdict | None:
        """The verdict kept at `address`, None where the provider is to be asked. Raises CoachError where nobody is to
        be asked and there is none."""

    def put(self, address: str, verdict: Verdict) -> None:
        """Keep a verdict that is not `failed`."""


Answer = Literal["schema", "json", "text"]
"""What a reply is to be: JSON that fits a schema, any JSON object, or text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of a provider.

    `messages` may begin with one of role `system`; the others are `user` and `assistant` in turn. `schema` is JSON
    schema in the portable form (`answer="schema"` has one). `max_tokens` bounds the reply, thinking included.
    `temperature` and `seed` None leave the provider's own. Calls of one `cache_key` begin alike, which a provider's
    prompt cache can use. `timeout_s` bounds the whole call in seconds.
    """

    messages: tuple[Message, ...]
    answer: Answer = "text"
    schema: Mapping[str, Any] | None = None
    max_tokens: int = 2048
    temperature: float | None = None
    seed: int | None = None
    cache_key: str | None = None
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a provider answered.

    `stop`: `end`, it finished; `length`, it was cut off at its token limit (thinking may have used it up); `blocked`,
    the provider or the model refused. `detail` is the provider's own word for it, and its reason. `model` is what
    answered, as the provider names it; `raw` is the reply as received. `usage` is None where the provider does not say.
    """

    text: str
    stop: Literal["end", "length", "blocked"]
    model: str
    raw: str
    usage: Usage | None = None
    detail: str = ""


class Transport(Protocol):
    """One provider's wire. Core makes a coach and an `api` policy of its name of each."""

    @property
    def model(self) -> str:
        """The model that is asked, as the recipe names it."""

    @property
    def host(self) -> str:
        """Where the server stands, for people to read: what is sent goes there."""

    async def complete(self, request: Request) -> Reply:
        """Make one call, once: whoever calls decides on another try.

        Raises:
            CallError: there is no reply.
        """

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Tokens of `messages` by the provider's own free counter; None where it has none."""

    async def close(self) -> None: ...
