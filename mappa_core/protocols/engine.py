"""Interfaces for training: shapers, estimators, optimisers of prompts, losses, samplers and engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from mappa_core.errors import RunError
from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.records import Completion, Int32, Message, Process, Sampling, Step, Task, ToolSpec, Trajectory

Rewards = tuple[float | None, ...]
"""One reward per step of a trajectory, in order; None if the verdict is missing."""


class Shaper(Protocol):
    """Transforms the rewards of one trajectory; None stays None unless the formula says otherwise."""

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        """Return a reward for each step of `trajectory`, in order, as `rewards` are."""


class Estimator(Protocol):
    """Computes the advantages of one iteration. `state` consists of JSON values that are stored in the checkpoint."""

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        """Return the advantages, and the `state` for the next iteration; that of the first one is empty."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossRows:
    """Inputs of a loss besides the new log-probabilities: tensors over the n tokens of one micro-batch, of the engine's
    library. Log-probabilities are nats. `row` counts within it, from 0; `weight` is that of the token's row."""

    logprobs: Any  # (n,) of the sampler
    old_logprobs: Any  # (n,) of the learner before the update
    ref_logprobs: Any | None  # (n,)
    weight: Any  # (n,)
    row: Any  # (n,) int64


Render = Callable[[str, Step, Sequence[Message]], Int32]
"""Renders messages as the prompt of a policy that has the tools of a step, (P,)."""


@runtime_checkable
class TeacherEstimator(Estimator, Protocol):
    """Estimator that also reads `Experience.teacher_logprobs`."""

    def teacher_policy(self, agents: Collection[str], saw_truth: Collection[str]) -> str | None:
        """Return a policy to load even if no agent plays by it. Raises ConfigError if `agents` must not be taught."""

    def teacher_view(self, experience: Experience, trajectories: Sequence[Trajectory], render: Render) -> Experience:
        """Return those rows that have a teacher, as the teacher reads them: after other prompts, by other policies."""


class PromptOptimizer(Protocol):
    """Improves the prompts of agents, every `prompts.every` iterations."""

    def set_apart(self, tasks: Sequence[Task]) -> Collection[str]:
        """Return the ids of the training tasks on which it chooses; nothing is trained on them."""

    async def improve(self, session: Any, folder: Any, done: int) -> Mapping[str, str]:
        """Return the prompts that change after `done` iterations, by agent. `session` (`commands.Session`) samples with
        the current weights. What it plays and asks is recorded in `folder` (`runs.RunFolder`), for a resume."""


class Loss(Protocol):
    """Computes a policy loss per token, whose mean the engine takes, and sums of metrics, to be divided by tokens."""

    def __call__(self, new_logprobs: Any, rows: LossRows, advantages: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return the losses (n,), and the sums of metrics, for `new_logprobs` (n,) in nats and `advantages` (n,)."""


class Sampler(Protocol):
    """Samples from one policy. Many callers may await `sample` concurrently."""

    @property
    def window(self) -> int | None: ...  # tokens that the policy reads, prompt and action together; None: not known
    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Any:
        """Return the prompt for `sample`; for an engine, token ids int32 (P,) by the model's own chat template."""

    async def sample(self, prompt: Any, sampling: Sampling) -> Completion:
        """Sample one action. Raises PromptTooLong if prompt and max_tokens exceed the context window."""

    def reply(self, completion: Completion) -> Message:
        """Parse the completion into an assistant message: think text separated, native tool calls parsed."""

    def encode(self, text: str) -> Int32 | None:
        """Encode `text` as the policy might have sampled it, with control tokens as text: token ids int32 (T,), then
        the end-of-turn token. None if they would not decode to it, or behind an API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapter: adds (alpha / rank) * B A x to the output of a linear layer, or (alpha / sqrt(rank)) * B A x
    with `rslora`. A starts random and B with zeros, so that an untrained adapter changes nothing."""

    rank: int
    alpha: float
    targets: tuple[str, ...] | None = None
    """Adapted layers, by the last part of their names (`q_proj`); None: every linear layer except the output head."""
    rslora: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """Policy with weights. `full`: all weights are trained. `lora`: an adapter on `model` is trained; `model` itself is
    loaded once for all its adapters. `frozen`: `model` untrained. Policies behind an API never reach an engine."""

    name: str
    model: str
    kind: Literal["full", "lora", "frozen"] = "full"
    lora: Lora | None = None
    start: Path | None = None
    """Policy folder in a checkpoint of another run whose weights, and nothing else, are the initial ones."""
    reference: Path | None = None  # such a folder, with the weights of the reference policy; None: those of `model`
    value_head: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # for the model's chat template, unchanged
    actions: tuple[tuple[int, int], ...] = ()  # expected tokens of each prompt and action of a trajectory, for a plan

    @property
    def trained(self) -> bool:
        return self.kind != "frozen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of a cluster. `gpu_bytes` is the memory of each of its GPUs, `memory_bytes` its own; 0: not known."""

    host: str
    cpus: int
    gpus: int = 0
    gpu_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """Memory that an engine takes: tables with headers first, then lines and notes to print; or why it is `unknown`."""

    tables: tuple[tuple[tuple[str, ...], ...], ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """The same as JSON values, with memory in bytes, under a key that names their form."""
    unknown: str | None = None


class Engine(Protocol):
    """Holds the samplers and learners of all policies. A class that derives from this one takes over the properties,
    `can_score`, `plan` and `export`. Building an engine loads no library of the training: `open` imports them."""

    @property
    def deterministic(self) -> bool:
        """Whether equal requests in equal waves give bit-identical completions; rollouts then run in waves."""
        return False

    @property
    def max_staleness(self) -> int:
        """Updates by which the sampling weights may lag behind the learner. 0: rollouts and updates alternate;
        otherwise samplers are called while `score`, `update` and `publish` run."""
        return 0

    @property
    def straggler_share(self) -> float:
        """Share below 1 of an iteration's trajectories that may be trained on later; 0 without staleness."""
        return 0.0

    @property
    def processes(self) -> Sequence[Process]:
        """The current sampler and learner processes; a restarted one is a new process."""
        return ()

    def can_score(self, policy: PolicySpec) -> bool:
        """Whether `score` takes rows of a policy: of every trained one, and of others, so that they may teach."""
        return True

    def plan(
        self, policies: Sequence[PolicySpec], train: Any | None, *, rows: int, machines: Sequence[Machine]
    ) -> EnginePlan:
        """Compute the memory of an engine that is not open, for `rows` concurrent trajectories. Raises ConfigError if
        its options are inconsistent, or the policies do not fit the machines of a cluster; without any it plans for
        this one, and `problems` in `details` say what it lacks."""
        return EnginePlan(unknown="the engine makes no plan")

    def export(self, policy: PolicySpec, weights: Path, out: Path, *, merged: bool, dtype: str | None) -> None:
        """Write a policy, whose weights `save` wrote to the folder `weights`, to `out` for Hugging Face's libraries;
        the engine need not be open. A `lora` policy becomes a folder of its adapter, or a whole model if `merged`;
        `dtype` is that of a whole model, None for its base's. Raises RunError if it cannot be exported."""
        raise RunError("the engine of this run exports no models")

    async def open(self, policies: Sequence[PolicySpec], train: Any | None, *, seed: int) -> None:
        """Load every policy; `train` is None for sampling only. `seed` determines the order of rows."""

    async def score(self, experience: Experience, *, reference: bool = True) -> Experience:
        """Fill in old_logprobs, ref_logprobs (None unless `reference`) and, with a value head, values of all rows."""

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration and return metrics per policy. `progress` in [0, 1), the share of
        completed iterations, drives the learning-rate schedule."""

    async def publish(self) -> Mapping[str, Receipt]:
        """Send the new weights to the samplers and verify them: the next version of every trained policy, counted from
        the start of the run, loads included."""

    def checkpoint_bytes(self, dtype: str) -> int | None:
        """Return the size of what `save` writes; None if it is known only from a checkpoint that was written."""
        return None

    async def save(self, folder: Path, *, dtype: str = "float32") -> None:
        """Write what `load` needs, weights in `dtype` (`checkpoint.dtype`) if it can, to a folder of each policy; to
        `reference` in it what `PolicySpec.reference` needs, if that is set. Samplers may go on meanwhile."""

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises RunError if it is damaged, or of other policies."""

    def sampler(self, policy: str) -> Sampler: ...
    async def close(self) -> None: ...
