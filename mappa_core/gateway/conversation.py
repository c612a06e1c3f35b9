"""One trajectory as its agent reaches it: requests become actions, in the order in which they come."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from mappa_core.errors import PromptTooLong, ReplayError, WorkflowError
from mappa_core.gateway.faults import RequestFault
from mappa_core.gateway.options import GatewayOptions
from mappa_core.protocols import Stage
from mappa_core.records import Message, Step, ToolSpec

ENDED = "the session of this key has ended: no further actions are made of its requests"


class Conversation:
    """What stands between the requests of one agent program and the stage.

    A prompt that does not fit is told to the program, which may shorten it. Whatever else keeps an action from being
    made ends the trajectory: `broken` raises it. So does silence, and an action too many.

    Args:
        agent_of: the agent by every value of `model` that means it.
    """

    def __init__(self, stage: Stage, options: GatewayOptions, agent_of: Mapping[str, str]) -> None:
        self.key = f"mappa-{secrets.token_urlsafe(24)}"
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refused: PromptTooLong | None = None
        """The latest prompt that did not fit."""
        self.steps: list[Step] = []
        self._stage = stage
        self._options = options
        self._agent_of = agent_of
        self._slots = asyncio.Semaphore(options.at_once)
        self._acts: set[asyncio.Task[Step]] = set()
        self._latest: dict[bytes, asyncio.Task[Step]] = {}
        self._actions = 0
        self._ended = False
        self._silence = self._listen()

    @property
    def last(self) -> Step:
        """The last of the `steps`: those of several requests at once end in any order."""
        return max(self.steps, key=lambda step: step.position)

    @property
    def models(self) -> tuple[str, ...]:
        """What requests may name as `model`."""
        return tuple(self._agent_of)

    def agent(self, model: str) -> str:
        """The agent that a request means. Raises RequestFault where it means none."""
        agents = set(self._agent_of.values())
        if len(agents) == 1:
            return next(iter(agents))
        if model not in self._agent_of:
            there = ", ".join(sorted(agents))
            raise RequestFault("model_not_found", f"no agent is called {model!r}; name one as `model`: {there}")
        return self._agent_of[model]

    async def act(
        self, agent: str, messages: Sequence[Message], own_tools: Sequence[ToolSpec], *, body: bytes, again: bool
    ) -> Step:
        """The action that a request becomes. One that its client sends `again`, as it did not hear the answer, is the
        action that it became at first.

        Raises:
            RequestFault: it became none.
        """
        sent = blake2b(body).digest()
        if again and sent in self._latest:
            return await asyncio.shield(self._latest[sent])
        if self._ended:
            raise RequestFault("session_ended", ENDED)
        self._silence.cancel()
        act = asyncio.create_task(self._act(agent, messages, own_tools))
        self._latest[sent] = act
        self._acts.add(act)
        act.add_done_callback(self._acted)
        return await asyncio.shield(act)

    async def close(self) -> None:
        """Refuse all further requests, and wait for the actions that are under way."""
        self._ended = True
        self._silence.cancel()
        await asyncio.gather(*self._acts, return_exceptions=True)

    def abandon(self) -> None:
        """Break off the actions that are under way."""
        for act in self._acts:
            act.cancel()

    async def _act(self, agent: str, messages: Sequence[Message], own_tools: Sequence[ToolSpec]) -> Step:
        async with self._slots:
            if self._ended or self.broken.done():
                raise RequestFault("session_ended", ENDED)
            self._actions += 1
            try:
                if self._actions > (most := self._options.max_actions):
                    raise WorkflowError(f"the agent asked for more than max_actions={most} actions")
                step = await self._stage.act(agent, messages, own_tools=own_tools)
            except PromptTooLong as error:
                self.refused = error
                raise RequestFault("context_length_exceeded", str(error)) from error
            except Exception as error:
                self._break(error)
                raise RequestFault("action_failed", f"{type(error).__name__}: {error}") from error
        self.steps.append(step)
        return step

    def _acted(self, act: asyncio.Task[Step]) -> None:
        self._acts.discard(act)
        if not act.cancelled():
            act.exception()  # whoever asked was told, or is gone
        if not self._acts and not self._ended:
            self._silence = self._listen()

    def _listen(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._options.silence_s, self._fell_silent)

    def _fell_silent(self) -> None:
        seconds = f"{self._options.silence_s:g} s (silence_s)"
        self._break(WorkflowError(f"the agent did not end and asked for nothing within {seconds}"))

    def _break(self, error: Exception) -> None:
        if self.broken.done():
            return
        if isinstance(error, ReplayError) and self._options.on_divergence == "fail":
            error = WorkflowError(str(error))
        self.broken.set_exception(error)
