"""The session of one trajectory's agent: its requests become actions, in the order in which they arrive."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from types import MappingProxyType

from mappa_core import MappaError, Message, PromptTooLong, ReplayError, Stage, Step, WorkflowError
from mappa_gateway.errors import RequestFault
from mappa_gateway.options import GatewayOptions
from mappa_gateway.wire.request import AgentRequest

SESSION_ENDED = "the session of this key has ended: no further actions are made of its requests"


class AgentSession:
    """Turns the requests of one agent program into actions on the stage.

    A prompt that is too long is reported to the program, which may shorten it. Any other failure of an action ends the
    trajectory: `failure` raises it. So do silence, and too many actions.

    Args:
        agent_of: the agent for every value of `model` that refers to it.
        replaced: texts that an agent's requests hold, and what to put in their place, by agent.
    """

    def __init__(
        self,
        stage: Stage,
        options: GatewayOptions,
        agent_of: Mapping[str, str],
        replaced: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        self.key = f"mappa-{secrets.token_urlsafe(24)}"
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.prompt_too_long: PromptTooLong | None = None
        """The latest error of a prompt that was too long."""
        self.steps: list[Step] = []
        self._stage = stage
        self._options = options
        self._agent_of = agent_of
        self._replaced = replaced
        self._slots = asyncio.Semaphore(options.at_once)
        self._acts: set[asyncio.Task[Step]] = set()
        self._act_by_request: dict[bytes, asyncio.Task[Step]] = {}
        self._actions = 0
        self._ended = False
        self._silence_timer = self._start_silence_timer()

    @property
    def last_step(self) -> Step:
        """The latest of the `steps` by position: those of concurrent requests end in any order."""
        return max(self.steps, key=lambda step: step.position)

    @property
    def models(self) -> tuple[str, ...]:
        """Values that requests may use as `model`."""
        return tuple(self._agent_of)

    def agent_for(self, model: str) -> str:
        """Return the agent that `model` refers to. Raises RequestFault if there is none."""
        agents = set(self._agent_of.values())
        if len(agents) == 1:
            return next(iter(agents))
        if model not in self._agent_of:
            names = ", ".join(sorted(agents))
            raise RequestFault("model_not_found", f"no agent is called {model!r}; name one as `model`: {names}")
        return self._agent_of[model]

    async def act(self, request: AgentRequest, *, body: bytes, is_retry: bool) -> Step:
        """Turn a request, of which `body` is the JSON, into an action. One that its client retries, as it did not
        receive the answer, returns the action of the first attempt.

        Raises:
            RequestFault: the request did not become an action.
        """
        agent, digest = self.agent_for(request.model), blake2b(body).digest()
        if is_retry and digest in self._act_by_request:
            return await asyncio.shield(self._act_by_request[digest])
        if self._ended:
            raise RequestFault("session_ended", SESSION_ENDED)
        self._silence_timer.cancel()
        act = asyncio.create_task(self._act(agent, request))
        self._act_by_request[digest] = act
        self._acts.add(act)
        act.add_done_callback(self._on_action_done)
        return await asyncio.shield(act)

    def count_tokens(self, request: AgentRequest) -> int:
        """Count the tokens of the prompt that a request would become; no action is made of it.

        Raises:
            RequestFault: the prompt cannot be rendered, or its policy is behind an API.
        """
        agent = self.agent_for(request.model)
        if self._ended:
            raise RequestFault("session_ended", SESSION_ENDED)
        try:
            count = self._stage.count_tokens(agent, self._replace_prompt(agent, request.messages), request.own_tools)
        except MappaError as error:
            raise RequestFault("invalid_request", str(error)) from error
        if count is None:
            raise RequestFault("unsupported", f"{agent}'s policy is behind an API, whose tokens are not known here")
        return count

    async def close(self) -> None:
        """Refuse all further requests, and wait for the running actions."""
        self._ended = True
        self._silence_timer.cancel()
        await asyncio.gather(*self._acts, return_exceptions=True)

    def cancel_actions(self) -> None:
        """Cancel the running actions."""
        for act in self._acts:
            act.cancel()

    async def _act(self, agent: str, request: AgentRequest) -> Step:
        async with self._slots:
            if self._ended or self.failure.done():
                raise RequestFault("session_ended", SESSION_ENDED)
            self._actions += 1
            try:
                if self._actions > (limit := self._options.max_actions):
                    raise WorkflowError(f"the agent asked for more than max_actions={limit} actions")
                messages = self._replace_prompt(agent, request.messages)
                step = await self._stage.act(agent, messages, own_tools=request.own_tools, stop=request.stop)
            except PromptTooLong as error:
                self.prompt_too_long = error
                raise RequestFault("context_length_exceeded", str(error)) from error
            except Exception as error:
                self._fail(error)
                raise RequestFault("action_failed", f"{type(error).__name__}: {error}") from error
        self.steps.append(step)
        return step

    def _replace_prompt(self, agent: str, messages: Sequence[Message]) -> Sequence[Message]:
        if agent not in self._replaced:
            return messages
        old, new = self._replaced[agent]
        if not any(old in message.content for message in messages):
            raise WorkflowError(f"a request of {agent} does not hold the text that its option `prompt` names")
        return [replace(message, content=message.content.replace(old, new)) for message in messages]

    def _on_action_done(self, act: asyncio.Task[Step]) -> None:
        self._acts.discard(act)
        if not act.cancelled():
            act.exception()  # its caller has received it, or is gone
        if not self._acts and not self._ended:
            self._silence_timer = self._start_silence_timer()

    def _start_silence_timer(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._options.silence_s, self._on_silence)

    def _on_silence(self) -> None:
        seconds = f"{self._options.silence_s:g} s (silence_s)"
        self._fail(WorkflowError(f"the agent did not end and asked for nothing within {seconds}"))

    def _fail(self, error: Exception) -> None:
        if self.failure.done():
            return
        if isinstance(error, ReplayError) and self._options.on_divergence == "fail":
            error = WorkflowError(str(error))
        self.failure.set_exception(error)
