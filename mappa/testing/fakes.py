"""Fakes for tests: samplers and engines without a model, a coach, a recorder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.protocols import Coach, Engine, Loss, PolicySpec
from mappa_core.records import (
    Completion,
    Int32,
    Message,
    Sampling,
    Scene,
    Step,
    Task,
    ToolSpec,
    Trajectory,
    Verdict,
    VersionSpan,
)
from mappa_core.tools.chat_format import split_calls

ReplyScript = Callable[[str, Sampling], str]  # From prompt text and sampling settings to a reply.


class ScriptedSampler:
    """A sampler with scripted replies, whose tokens are the bytes of its text, of -1 nat each. `version` is that of its
    weights. `<tool_call>{"name": …, "arguments": {…}}</tool_call>` in its text calls a tool."""

    window = None

    def __init__(self, script: ReplyScript, version: int = 0) -> None:
        self._script = script
        self.version = version
        self.prompts: list[str] = []

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Int32:
        text = "".join(f"<{message.role}>{message.content}" for message in messages) + "<assistant>"
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    async def sample(self, tokens: Int32, sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        prompt = bytes(tokens.astype(np.uint8)).decode()
        self.prompts.append(prompt)
        text = self._script(prompt, sampling)
        at, stop_text = min(
            ((text.find(wanted), wanted) for wanted in sampling.stop if wanted in text), default=(-1, None)
        )
        whole = text + "\n" if stop_text is None else text[: at + len(stop_text)]
        sampled = np.frombuffer(whole.encode(), dtype=np.uint8).astype(np.int32)
        return Completion(
            text=text if stop_text is None else text[:at],
            prompt_tokens=tokens,
            tokens=sampled,
            logprobs=np.full(len(sampled), -1.0, dtype=np.float32),
            finish="stop",
            temperature=sampling.temperature,
            versions=(VersionSpan(version=self.version, start=0, end=len(sampled)),),
            stop_text=stop_text,
        )

    def reply(self, completion: Completion) -> Message:
        content, calls = split_calls(completion.text)
        return Message(role="assistant", content=content, tool_calls=calls)

    def encode(self, text: str) -> Int32 | None:
        return np.frombuffer(text.encode() + b"\n", dtype=np.uint8).astype(np.int32)


class ScriptedEngine(Engine):
    """An engine without weights: samples scripted replies, and counts its updates in `updates`."""

    deterministic = True
    max_staleness = 0  # attributes: an engine of a test sets them
    straggler_share = 0.0

    def __init__(self, script: ReplyScript) -> None:
        self._script = script
        self._samplers: dict[str, ScriptedSampler] = {}
        self.updates = 0

    async def open(self, policies: Sequence[PolicySpec], train: Any | None, *, seed: int) -> None:
        self._samplers = {spec.name: ScriptedSampler(self._script) for spec in policies}

    def sampler(self, policy: str) -> ScriptedSampler:
        return self._samplers[policy]

    async def score(self, experience: Experience, *, reference: bool = True) -> Experience:
        return experience

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        self.updates += 1
        return {}

    async def publish(self) -> Mapping[str, Receipt]:
        for sampler in self._samplers.values():
            sampler.version = self.updates
        return {name: Receipt(version=self.updates, checksum="") for name in self._samplers}

    async def save(self, folder: Path, *, dtype: str = "float32") -> None:
        self._write(folder / "updates")

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        path.write_text(str(self.updates))

    async def load(self, folder: Path) -> None:
        self.updates = int((folder / "updates").read_text())
        await self.publish()

    async def close(self) -> None:
        self._samplers = {}


def fake_completion(text: str, tokens: int | None, **fields: Any) -> Completion:
    """A completion of so many tokens of -1 nat each; None: by a policy behind an API. `fields` override its fields."""
    known: dict[str, Any] = {"prompt_tokens": None, "tokens": None, "logprobs": None, "finish": "stop"}
    if tokens is not None:
        known |= {"prompt_tokens": np.arange(4, dtype=np.int32), "tokens": np.arange(tokens, dtype=np.int32)}
        known |= {"logprobs": np.full(tokens, -1.0, dtype=np.float32)}
        known |= {"versions": (VersionSpan(version=0, start=0, end=tokens),)}
    return Completion(text=text, **known | fields)


def fake_step(step_id: str, agent: str, completion: Completion, **fields: Any) -> Step:
    """A step whose reply is its completion's text; `fields` are others of its fields."""
    reply = Message(role="assistant", content=completion.text)
    known = {"turn": 0, "position": 0, "policy": agent, "messages": (), "reply": reply, **fields}
    return Step(id=step_id, agent=agent, completion=completion, **known)


class FixedCoach(Coach):
    """A coach that gives every action the same score (points, 0-10)."""

    def __init__(self, score: float) -> None:
        self._score = score
        self.scenes: list[Scene] = []

    async def score(self, scene: Scene) -> Verdict:
        self.scenes.append(scene)
        return Verdict.scored(self._score, "the same for everyone")


class MemoryRecorder:
    """A recorder that keeps in memory what a store would write."""

    def __init__(self) -> None:
        self.trajectory_ids: list[str] = []
        self.steps: list[Step] = []
        self.verdicts: list[Verdict] = []
        self.trajectories: list[Trajectory] = []

    def begin_trajectory(self, split: str, trajectory_id: str, task: Task, sample: int, iteration: int) -> None:
        self.trajectory_ids.append(trajectory_id)

    def record_step(self, trajectory_id: str, step: Step) -> None:
        self.steps.append(step)

    def record_verdict(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def end_trajectory(self, trajectory: Trajectory) -> None:
        self.trajectories.append(trajectory)
