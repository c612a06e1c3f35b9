"""Who learns: from verdicts to rewards, advantages and new weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.records import Completion, Int32, Message, Process, Sampling, ToolSpec, Trajectory

Rewards = tuple[float | None, ...]
"""One reward per step of a trajectory, in order; None where the verdict is missing."""


class Shaper(Protocol):
    """Rewards of one trajectory to rewards; None stays None unless the formula says otherwise."""

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards: ...


class Estimator(Protocol):
    """Rewards to advantages, over one iteration. `state` is JSON values kept in the checkpoint."""

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossRows:
    """What a loss sees beside the new log-probabilities: torch tensors over the n tokens of one micro-batch.

    `row` numbers the rows from 0 in this micro-batch; `weight` is the row's weight on every token.
    """

    logprobs: Any  # (n,) of the sampler
    old_logprobs: Any  # (n,) of the learner before the update
    ref_logprobs: Any | None  # (n,)
    weight: Any  # (n,)
    row: Any  # (n,) int64


class Loss(Protocol):
    """Per-token policy loss in torch; the engine owns the mean. Metrics are sums over tokens; the engine divides."""

    def __call__(self, new_logprobs: Any, rows: LossRows, advantages: Any) -> tuple[Any, Mapping[str, Any]]: ...


class Sampler(Protocol):
    """The weights of one policy, ready to write. Many callers may await `sample` at once."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Any:
        """The prompt as `sample` takes it: of an engine, tokens int32 (P,) by the model's own chat template."""

    async def sample(self, prompt: Any, sampling: Sampling) -> Completion:
        """Sample one action. Raises PromptTooLong where prompt and max_tokens exceed the window."""

    def reply(self, completion: Completion) -> Message:
        """The completion as an assistant message: think text apart, native tool calls parsed."""

    def encode(self, text: str) -> Int32 | None:
        """`text` as an action that the policy might have sampled: tokens int32 (T,) that decode to it, and the one that
        ends an answer. No control token stands for what only looks like one.

        None where the policy cannot write the text to the letter; of a policy behind an API always.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A low-rank adapter: what a linear layer gives has (alpha / rank) * B A x added to it, (alpha / sqrt(rank)) where
    `rslora`. A is random and B zero to begin with, so an adapter that was never trained changes nothing."""

    rank: int
    alpha: float
    targets: tuple[str, ...] | None = None
    """Last parts of the names of the layers that get one (`q_proj`); None: every linear layer but the output head."""
    rslora: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """What has weights. `full`: own weights, trained. `lora`: an adapter of its own on `model`, trained; `model` stays
    as it is and is held once for all its adapters. `frozen`: `model` as it is. (Policies behind an API have none, and
    no engine sees them.)

    The reference of a policy is `model`, wherever its own weights started.
    """

    name: str
    model: str
    kind: Literal["full", "lora", "frozen"] = "full"
    lora: Lora | None = None
    """The adapter of a `lora` policy."""
    start: Path | None = None
    """Folder of a policy in a checkpoint of another run whose weights this one starts with; the optimiser, versions and
    steps start afresh."""
    value_head: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the model's chat template as they are (for example enable_thinking)."""

    @property
    def trained(self) -> bool:
        """Whether it learns."""
        return self.kind != "frozen"


class Engine(Protocol):
    """Samplers and learners of all policies. The loop never asks which engine it drives."""

    @property
    def deterministic(self) -> bool:
        """Whether equal requests in equal waves give bit-equal completions; rollouts are then admitted in waves."""

    @property
    def max_staleness(self) -> int:
        """Updates by which the weights that sampled may be older than those that learn. 0: rollouts and updates take
        turns, else samplers are asked while `score`, `update` and `publish` go on."""

    @property
    def straggler_share(self) -> float:
        """Share of an iteration's trajectories, below 1, that a later one may learn from; 0 without staleness."""

    @property
    def processes(self) -> Sequence[Process]:
        """The processes that sample and learn, as they are now; one that was started again is another."""

    async def open(self, policies: Sequence[PolicySpec], train: Any | None, *, seed: int) -> None:
        """Load every policy; `train` is the recipe's `train` section, None for sampling only. `seed` orders rows."""

    def sampler(self, policy: str) -> Sampler: ...

    async def score(self, experience: Experience) -> Experience:
        """Fill old_logprobs, ref_logprobs (and values) of all rows."""

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; metrics per policy. `progress` in [0, 1) is the share of
        iterations done, the clock of the learning-rate schedule."""

    async def publish(self) -> Mapping[str, Receipt]:
        """Hand the new weights to the samplers, verified: the next version of every policy that learns. A version
        counts publishes since the start, those before a `load` among them."""

    async def save(self, folder: Path) -> None: ...

    async def load(self, folder: Path) -> None: ...

    async def export(self, policy: str, folder: Path) -> None:
        """Write one policy as an ordinary Hugging Face folder."""

    async def close(self) -> None: ...
