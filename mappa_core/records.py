"""The nouns: frozen values that know nothing of storage, plugins or torch.

Shapes: P prompt tokens, T sampled tokens of one action.
Scores are points from 0 to 10; log-probabilities are nats; durations are seconds. Missing is None, never a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

Finish = Literal["stop", "length", "tool", "abort"]
Phase = Literal["live", "after", "again"]
NOBODY = "nobody"
MAX_SCORE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. `reference` is the truth and is never shown to an agent; `files` maps a name to a read-only path.

    Tasks of one `cluster` (cut from one data set) are no independent evidence: intervals count clusters. None: the
    task stands for itself.
    """

    id: str
    prompt: str
    reference: str | None = None
    stratum: str = "all"
    cluster: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an action makes: a fenced block or a native call of the model's template."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    error: str | None = None
    """Why the call cannot be run (unclosed block, arguments that are not JSON); such a call is answered, not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. `reasoning` is think text, kept for training and cut from what others see."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a model sees it: `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Sampled tokens [start, end) came from version `version` of the policy (updates so far)."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What `calls` calls of a provider took. `prompt_tokens` include the `cached_tokens`, `completion_tokens` the
    `thinking_tokens`; None where the provider does not say, `usd` None where the price is unknown."""

    calls: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    thinking_tokens: int | None = None
    usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        """Both together; a figure that one of them does not know is unknown."""
        return Usage(
            calls=self.calls + other.calls,
            prompt_tokens=_both(self.prompt_tokens, other.prompt_tokens),
            completion_tokens=_both(self.completion_tokens, other.completion_tokens),
            cached_tokens=_both(self.cached_tokens, other.cached_tokens),
            thinking_tokens=_both(self.thinking_tokens, other.thinking_tokens),
            usd=_both(self.usd, other.usd),
        )


Amount = TypeVar("Amount", int, float)


def _both(one: Amount | None, other: Amount | None) -> Amount | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What a sampler returned, never re-encoded: what was sampled is what is trained.

    `text` is `tokens` decoded, without the stop token. `logprobs` are nats of the temperature-scaled distribution.
    Arrays are None for policies behind an API, whose rows never enter an Experience; `usage` is None for all others.
    """

    text: str
    prompt_tokens: Int32 | None  # (P,)
    tokens: Int32 | None  # (T,), with the stop token if one was sampled
    logprobs: Float32 | None  # (T,)
    finish: Finish
    temperature: float = 1.0
    versions: tuple[VersionSpan, ...] = ()
    usage: Usage | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """What one action did to one file of the workspace. `size` in bytes; sha256 and size are None once deleted."""

    path: str
    kind: Literal["created", "changed", "deleted"]
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool answered. A program that fails is a result (`error`); a sandbox that fails is a ToolError.

    `sandbox` names where a program ran, None for tools that run none. `attempts` counts how often the call was made:
    all but the last were lost by the tool's machinery.
    """

    tool: str
    status: Literal["ok", "error", "timeout"]
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    files: tuple[FileChange, ...] = ()
    truncated: bool = False
    seconds: float = 0.0
    sandbox: str | None = None
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A hand-off contract that was not kept, checked by machine: `path` is not there, or it is and cannot be used.

    What is broken is found by the workflow's `inspect`; `reason` is its word for the kind of fault (`columns`), empty
    where the file is missing.
    """

    agent: str
    kind: Literal["missing_input", "missing_output", "broken_input", "broken_output"]
    path: str
    detail: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a workflow's `inspect` found in the files that an agent leaves.

    `over`: the agent has met its contract and says that it is done, so that its turns end here. `breaches` are files
    that cannot be used. `findings` are sentences for the coach, in which only names from the workflow or the task
    stand; `facts` are JSON values for coaches that compute.
    """

    over: bool
    breaches: tuple[Breach, ...] = ()
    findings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One action of one agent: the unit of credit. It holds no verdict; verdicts refer to it by `id`.

    `reply` is the completion as a message (think text apart, native calls parsed): what is passed on.
    `calls` are the calls that were made of it, `results` their answers, in order. `inspection` is what the workflow
    found in the files after it, None where it did not look. `tools` names the run's tools that it could call;
    `own_tools` are those that the workflow answers itself: their calls stand in `reply` alone.
    """

    id: str
    agent: str
    turn: int
    position: int
    policy: str
    messages: tuple[Message, ...]
    reply: Message
    completion: Completion
    tools: tuple[str, ...] = ()
    own_tools: tuple[ToolSpec, ...] = ()
    files: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    breaches: tuple[Breach, ...] = ()
    inspection: Inspection | None = None
    strata: Mapping[str, str] = field(default_factory=dict)

    @property
    def truncated(self) -> bool:
        """Whether the action ended at its token limit and not by its own stop."""
        return self.completion.finish == "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A coach's judgement of one step: added, never changed. `score` is points 0-10, and None unless `scored`.

    A coach writes the judgement with `scored`, `abstained` or `failed`; the stage fills in who, whom and when.
    `blame` names the agent at fault, `nobody`, or None where the coach does not say. `correction` is a better action in
    full. `raw_score` is the score before it was corrected for bias, None where nothing was corrected.

    So that it can be explained years later: `question` is the content address of all that was asked (template, model,
    schema, evidence), `template_hash`, `model` (as the provider names what answered), `seed` and `raw_reply` are of the
    call that gave the score. A verdict that is `replayed` comes from a cassette: its `usage` was paid once, not again.
    """

    status: Literal["scored", "abstained", "failed"]
    score: float | None = None
    reasoning: str = ""
    blame: str | None = None
    correction: str | None = None
    error: str | None = None
    raw_score: float | None = None
    members: tuple[Verdict, ...] = ()
    usage: Usage | None = None
    question: str | None = None
    template_hash: str | None = None
    model: str | None = None
    seed: int | None = None
    raw_reply: str | None = None
    replayed: bool = False
    id: str = ""
    step: str = ""
    coach: str = ""
    phase: Phase = "live"
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if (self.status == "scored") != (self.score is not None):
            raise ValueError(f"a verdict has a score if and only if it is scored: {self.status}, {self.score}")
        if self.score is not None and not 0.0 <= self.score <= MAX_SCORE:
            raise ValueError(f"a score lies between 0 and {MAX_SCORE:g} points, not {self.score}")

    @classmethod
    def scored(
        cls, score: float, reasoning: str, *, blame: str | None = None, correction: str | None = None
    ) -> Verdict:
        """A judgement of `score` points (0-10)."""
        return cls(status="scored", score=float(score), reasoning=reasoning, blame=blame, correction=correction)

    @classmethod
    def abstained(cls, reasoning: str) -> Verdict:
        """The coach looked and will not judge: no score, no gradient."""
        return cls(status="abstained", reasoning=reasoning)

    @classmethod
    def failed(cls, error: str) -> Verdict:
        """The coach could not judge: no score, no gradient, counted against `coach.max_missing`."""
        return cls(status="failed", error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trajectory ended early: the type of the error, its message and the step it happened at."""

    kind: str
    message: str
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """What came of a trajectory whose action at `position` was replaced, the `number`-th time, from there on live."""

    position: int
    number: int
    outcome: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One rollout: the steps of all agents in order, their verdicts and the outcome. Never empty and silent:
    one that could not be finished carries `error` and the steps so far."""

    id: str
    task: Task
    sample: int
    iteration: int
    steps: tuple[Step, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    outcome: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None
    seconds: float = 0.0
    counterfactuals: tuple[Counterfactual, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """An agent's part in a workflow: what it is for (shown to the coach) and its contract of files. `rubric` is the
    Markdown template by which a coach judges it, None for the general one."""

    brief: str
    needs: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    rubric: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """All that a coach may see of one step. `task.reference` is None unless the recipe shows it for this agent
    (`coach.reference_for`), and so is `truth`: what the workflow tells of the truth about this action, in words, where
    the reference is not to be read as it is. `later` and `outcome` are None unless the coach judges in hindsight.
    `team` holds the roles of all agents by name."""

    task: Task
    role: Role
    step: Step
    team: Mapping[str, Role] = field(default_factory=dict)
    earlier: tuple[Step, ...] = ()
    later: tuple[Step, ...] | None = None
    outcome: Mapping[str, float] | None = None
    truth: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one action. `top_p` 1 and `top_k` 0 leave the distribution whole, as training needs it."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """What one call of a tool may use.

    Seconds of wall and CPU time; bytes of memory, of one file and of each stream of output; processes and threads at
    once; bytes and number of the files that it leaves. A program counts together with all that it starts.
    """

    wall_s: float = 30.0
    cpu_s: float = 30.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 64 << 20
    output_bytes: int = 64 << 10
    processes: int = 64
    workspace_bytes: int = 512 << 20
    workspace_files: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Where a tool runs programs, as a program that ran there showed. `name` stands in every ToolResult; `warnings` say
    what is not kept from programs."""

    name: str
    detail: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that an engine works in, for the record of who sampled and who learned. `versions` are of the libraries
    that it works with, those that are not installed left out."""

    role: str
    pid: int
    host: str
    versions: Mapping[str, str] = field(default_factory=dict)
