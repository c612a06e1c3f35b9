"""Teachers on servers with OpenAI's completions API: they score given tokens, and of them only tokenizers are read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from mappa_core import ConfigError, Message, ToolSpec
from mappa_core.engine import Completion, EngineLost, Experience, PolicySpec, Sampling
from mappa_core.transport import (
    CallError,
    Secret,
    bounded_hooks,
    check_base_url,
    fault_from_status,
    one_line,
    retry_after,
)
from mappa_engine.arrays import Float32, Int32

if TYPE_CHECKING:
    import httpx2

    from mappa_engine.model_info import ModelInfo
    from mappa_engine.options import TeacherServer

TRANSIENT = ("rate_limit", "overloaded", "server", "timeout", "connection", "garbled")
ATTEMPTS, WAIT_S = 6, 1.0
"""Attempts of one call, and the seconds before the second one; before each further one twice as long."""

log = structlog.get_logger()


class TeacherServers:
    """The teachers that are on servers, by the names of their policies."""

    def __init__(self, servers: Mapping[str, TeacherServer]) -> None:
        """Raises ConfigError where an address cannot be used, or the variable of a key is not set."""
        self._servers = servers
        self._keys: dict[str, Secret] = {}
        for name, server in servers.items():
            check_base_url(f"engine.options.teachers.{name}", server.base_url, path="/v1")
            if server.concurrency < 1 or server.timeout_s <= 0:
                raise ConfigError(f"engine.options.teachers.{name}: concurrency and timeout_s must be above 0")
            if server.api_key_env:
                self._keys[name] = Secret.from_env(server.api_key_env, f"the teacher {name}")
        self._teachers: dict[str, _Teacher] = {}

    def __contains__(self, policy: str) -> bool:
        return policy in self._servers

    def loaded_by_engine(self, policies: Sequence[PolicySpec]) -> tuple[PolicySpec, ...]:
        """The policies without the teachers on servers. Raises ConfigError if one of these is trained."""
        for spec in policies:
            if spec.name in self._servers and spec.kind != "frozen":
                raise ConfigError(
                    f"engine.options.teachers.{spec.name}: the policy is {spec.kind}, and what is on a server is not "
                    f"trained: set policies.{spec.name}.kind=frozen"
                )
        return tuple(spec for spec in policies if spec.name not in self._servers)

    async def open(self, policies: Sequence[PolicySpec], *, learning: bool) -> None:
        """Read the tokenizers of the teachers among `policies`, and let each score a few tokens if the run is
        `learning`. Raises ModelError if a tokenizer cannot be used, ConfigError if a server does not score, or no
        policy has its name."""
        names = [spec.name for spec in policies]
        for name in self._servers:
            if learning and name not in names:
                raise ConfigError(
                    f"engine.options.teachers.{name}: no policy of this name teaches or plays here: name it in the "
                    f"estimator's options, or one of {', '.join(names)} here"
                )
        for spec in policies:
            if spec.name in self._servers:
                server = self._servers[spec.name]
                client = _ScoringClient(spec.name, server, server.model or spec.model, self._keys.get(spec.name))
                log.warning("teacher.opens", policy=spec.name, host=client.host, sends="prompts and actions, as tokens")
                info = await asyncio.to_thread(_read_info, spec.model)
                self._teachers[spec.name] = _Teacher(spec, info, client)
                if learning:
                    await client.check(info.chat.render([Message(role="user", content="?")]))

    def teach(self, experience: Experience) -> bool:
        """Whether all rows are of one teacher on a server."""
        return len(experience.policies) == 1 and experience.policies[0] in self._servers

    def sampler(self, policy: str) -> _Teacher:
        """Return what renders the prompts of `policy`."""
        return self._teachers[policy]

    async def score(self, experience: Experience) -> Experience:
        """Fill in old_logprobs of rows that are all of one teacher.

        Raises:
            ConfigError: an action was drawn from a distribution that a server cannot compute, or it refuses.
            EngineLost: it does not answer.
        """
        (name,) = experience.policies
        if (experience.temperature != 1.0).any() or experience.mask_tokens is not None:
            raise ConfigError(
                f"engine.options.teachers.{name}: a server scores at temperature 1 with nothing cut off; set "
                "sampling.temperature=1, top_p=1 and top_k=0, or let the engine load the teacher"
            )
        logprobs = await self._teachers[name].client.score_rows(experience)
        return replace(experience, old_logprobs=np.concatenate([np.zeros(0, np.float32), *logprobs]))

    async def close(self) -> None:
        for teacher in self._teachers.values():
            await teacher.client.close()


class _Teacher:
    """Renders prompts as the teacher reads them. It has no weights here, so that nothing is sampled from it."""

    window = None  # The server refuses what is longer than its own.

    def __init__(self, spec: PolicySpec, info: ModelInfo, client: _ScoringClient) -> None:
        self.client = client
        self._spec, self._info = spec, info

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Int32:
        return self._info.chat.render(messages, tools, self._spec.template_kwargs)

    async def sample(self, prompt: Int32, sampling: Sampling) -> Completion:
        raise ConfigError(
            f"engine.options.teachers.{self._spec.name}: an agent plays by this policy, which only scores; give the "
            "agent a policy of kind api"
        )

    def reply(self, completion: Completion) -> Message:
        return self._info.chat.reply(completion)

    def encode(self, text: str) -> Int32 | None:
        return self._info.chat.encode(text, self._info.stops)


class _ScoringClient:
    """Asks one server for log-probabilities of tokens that it did not write."""

    def __init__(self, policy: str, server: TeacherServer, model: str, key: Secret | None) -> None:
        import httpx2

        self._policy, self._server, self._model, self._key = policy, server, model, key
        self._turns = asyncio.Semaphore(server.concurrency)
        self._told = 0
        """The attempt that was warned of last, 0 after an answer."""
        headers = {} if key is None else {"Authorization": f"Bearer {key.reveal()}"}
        self._http = httpx2.AsyncClient(
            base_url=server.base_url.rstrip("/") + "/",
            headers=headers,
            timeout=server.timeout_s,
            trust_env=False,
            follow_redirects=False,
            event_hooks=bounded_hooks(),
        )
        self.host = self._http.base_url.netloc.decode()

    async def check(self, tokens: Int32) -> None:
        """Raise ConfigError if the server does not score these tokens."""
        try:
            await self._score(tokens[:1], tokens[1:])
        except EngineLost as error:
            raise ConfigError(str(error)) from error

    async def score_rows(self, experience: Experience) -> list[Float32]:
        """The log-probabilities (T,) of every row's sampled tokens after its prompt, at temperature 1."""
        prompts = np.split(experience.prompt_tokens, experience.prompt_offsets[1:-1])
        actions = np.split(experience.tokens, experience.offsets[1:-1])
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._score(*row)) for row in zip(prompts, actions, strict=True)]
        except* (ConfigError, EngineLost) as several:
            raise several.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _score(self, prompt: Int32, action: Int32) -> Float32:
        tokens = [*prompt.tolist(), *action.tolist()]
        async with self._turns:
            for attempt in count(1):
                try:
                    found = (await self._ask(tokens))[len(prompt) :]
                    self._told = 0
                    return found
                except CallError as error:
                    fault = f"engine.options.teachers.{self._policy}: {self.host} scored nothing: {error}"
                    if error.kind not in TRANSIENT:
                        raise ConfigError(fault) from error
                    if attempt == ATTEMPTS:
                        raise EngineLost(fault, actor=f"the server of {self._policy}") from error
                    if attempt > self._told:  # once for all actions that wait
                        log.warning("teacher.retried", host=self.host, attempt=attempt, error=str(error))
                        self._told = attempt
                    wait_s = WAIT_S * 2 ** (attempt - 1)
                    await asyncio.sleep(wait_s if error.retry_after_s is None else error.retry_after_s)
        raise AssertionError("count does not end")

    async def _ask(self, tokens: Sequence[int]) -> Float32:
        """The log-probabilities (T,) of all tokens, NaN of the first, which follows nothing. Raises CallError."""
        import httpx2

        # With `echo` the prompt is answered as if it had been written; of a new token nothing is asked.
        body = {"model": self._model, "prompt": tokens, "echo": True, "logprobs": 0, "max_tokens": 0}
        try:
            # The timeout of the client is of each read.
            async with asyncio.timeout(self._server.timeout_s):
                response = await self._http.post("completions", json=body)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise CallError("timeout", f"no answer in {self._server.timeout_s:g} s") from error
        except httpx2.HTTPError as error:
            raise CallError("connection", self._hide(str(error) or type(error).__name__)) from error
        if response.status_code != 200:
            fault, wait_s = fault_from_status(response.status_code), retry_after(response.headers)
            said = self._hide(f"status {response.status_code} {response.text}")
            raise CallError(fault, said, retry_after_s=wait_s)
        return _read_logprobs(response, len(tokens))

    def _hide(self, text: str) -> str:
        return one_line(text) if self._key is None else self._key.hide(text)

    async def close(self) -> None:
        await self._http.aclose()


def _read_logprobs(response: httpx2.Response, tokens: int) -> Float32:
    try:
        found: Any = response.json()["choices"][0]["logprobs"]["token_logprobs"]
        logprobs = np.array([np.nan, *found[1:]], dtype=np.float32)
    except (ValueError, LookupError, TypeError) as error:
        raise CallError("garbled", f"an answer without token_logprobs: {one_line(response.text, 200)}") from error
    if len(logprobs) != tokens or not np.isfinite(logprobs[1:]).all():
        raise CallError("request", f"{len(logprobs)} log-probabilities of {tokens} tokens: the server does not echo")
    return logprobs


def _read_info(model: str) -> ModelInfo:
    from mappa_engine.model_info import read_model_info

    return read_model_info(model)
