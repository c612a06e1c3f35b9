"""Frozen record types, independent of storage, plugins and torch.

Shapes: P prompt tokens, T sampled tokens of one action. Scores are points from 0 to 10; log-probabilities are nats;
durations are seconds. Missing values are None, never a number.
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

Finish = Literal["stop", "length", "tool", "abort"]  # Why a sampler ended an action.
Phase = Literal["live", "after", "again"]  # When a verdict was made: during the rollout, in hindsight, by recoach.
NOBODY = "nobody"  # The blame of a verdict that blames no agent.
MAX_SCORE = 10.0  # Points of a perfect action; the fewest are 0.


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. `reference` is the ground truth, never shown to an agent; `files` maps names to read-only paths.

    Tasks of one `cluster` (made from one data set) are not independent: confidence intervals count clusters. None: the
    task is a cluster of its own.
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
    """Tool call made by an action: a fenced block or a native call of the model's chat template."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    error: str | None = None
    """Why the call cannot be run (unclosed block, arguments that are not JSON); the agent gets this error as the
    result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. `reasoning` is the think text, kept for training and hidden from other agents."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """Tool as described to a model: `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Policy version (number of updates) that sampled the tokens [start, end)."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token usage and cost of `calls` provider calls. `prompt_tokens` include `cached_tokens`, `completion_tokens`
    include `thinking_tokens`. Counts are None if the provider does not report them, `usd` is None if the price is
    unknown."""

    calls: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    thinking_tokens: int | None = None
    usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        """Sum of both; a field that is None in either is None."""
        return Usage(
            calls=self.calls + other.calls,
            prompt_tokens=_add_known(self.prompt_tokens, other.prompt_tokens),
            completion_tokens=_add_known(self.completion_tokens, other.completion_tokens),
            cached_tokens=_add_known(self.cached_tokens, other.cached_tokens),
            thinking_tokens=_add_known(self.thinking_tokens, other.thinking_tokens),
            usd=_add_known(self.usd, other.usd),
        )


_Number = TypeVar("_Number", int, float)


def _add_known(one: _Number | None, other: _Number | None) -> _Number | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """Output of a sampler. Its tokens are trained on as they are, never re-encoded.

    `text` is the decoded `tokens` without the stop token. `logprobs` are nats of the temperature-scaled distribution.
    Arrays are None for policies behind an API, which are never part of an Experience; `usage` is None for all others.
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
    """Change of one workspace file by one action. `size` is in bytes; sha256 and size are None for a deleted file."""

    path: str
    kind: Literal["created", "changed", "deleted"]
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of a tool call. A program that fails is a result (`error`); a sandbox that fails raises ToolError.

    `sandbox` names the sandbox that ran the program, None for tools that run no programs. `attempts` counts how often
    the call was made: all but the last attempt failed in the tool's infrastructure.
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
    """Violated file contract, checked by code: the file at `path` is missing or cannot be used.

    Core reports missing files, the workflow's `inspect` reports broken ones; `reason` is its label for the kind of
    fault (`columns`), empty for a missing file.
    """

    agent: str
    kind: Literal["missing_input", "missing_output", "broken_input", "broken_output"]
    path: str
    detail: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Result of a workflow's `inspect` on the files of an agent.

    `over`: the agent has met its contract and says that it is done, which ends its turns. `breaches` are files that
    cannot be used. `findings` are sentences for the coach that contain only names from the workflow or the task;
    `facts` are JSON values for coaches that compute scores.
    """

    over: bool
    breaches: tuple[Breach, ...] = ()
    findings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One action of one agent: the unit of credit. It holds no verdict; verdicts refer to it by `id`.

    `reply` is the completion as a message (think text separated, native calls parsed), as other agents see it.
    `calls` are the tool calls that were run, `results` their results in the same order. `inspection` is the workflow's
    inspection of the files after the action, None if there was none. `tools` names the run's tools that were available;
    `own_tools` are answered by the workflow itself: their calls appear only in `reply`.
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
        """Whether the action hit its token limit instead of stopping by itself."""
        return self.completion.finish == "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A coach's judgement of one step, immutable. `score` is in points 0-10, and None unless `status` is `scored`.

    A coach creates it with `scored`, `abstained` or `failed`; the stage fills in step, coach, phase and time.
    `blame` names the agent at fault, `nobody`, or None if the coach names no one. `correction` is a complete better
    action. `raw_score` is the score before bias correction, None if it was not corrected.

    For reproducibility: `question` is the content address of the full request (template, model, schema, evidence);
    `template_hash`, `model` (the name that the provider reported), `seed` and `raw_reply` belong to the call that gave
    the score. A `replayed` verdict comes from a cassette: its `usage` was paid when it was recorded, not again.
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
        """Create a verdict of `score` points (0-10)."""
        return cls(status="scored", score=float(score), reasoning=reasoning, blame=blame, correction=correction)

    @classmethod
    def abstained(cls, reasoning: str) -> Verdict:
        """Create the verdict of a coach that declines to judge: no score, no gradient."""
        return cls(status="abstained", reasoning=reasoning)

    @classmethod
    def failed(cls, error: str) -> Verdict:
        """Create the verdict of a coach that failed: no score, no gradient, counted against `coach.max_missing`."""
        return cls(status="failed", error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trajectory ended early: the error type, its message and the step at which it occurred."""

    kind: str
    message: str
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """Outcome of the `number`-th counterfactual rollout: the action at `position` replaced, all later ones sampled
    anew."""

    position: int
    number: int
    outcome: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One rollout: the steps of all agents in order, their verdicts and the outcome. A trajectory that could not be
    finished has `error` and the steps so far."""

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
    """An agent's role in a workflow: its purpose (shown to the coach) and its file contract. `rubric` is the Markdown
    template that a coach judges it by, None for the default one."""

    brief: str
    needs: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    rubric: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """Everything that a coach may see of one step. `task.reference` is None unless the recipe shows it for this agent
    (`coach.reference_for`). The same holds for `truth`, the workflow's description of the ground truth for this action,
    used if the raw reference is not meant to be read. `later` and `outcome` are None unless the coach judges in
    hindsight. `team` holds the roles of all agents by name."""

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
    """Sampling parameters of one action. `top_p` 1 and `top_k` 0 disable truncation, as training requires."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Resource limits of one tool call.

    Seconds of wall and CPU time; bytes of memory, of one file and of each output stream; concurrent processes and
    threads; total bytes and number of the files that it leaves. Child processes count towards the limits.
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
    """Sandbox that runs a tool's programs, verified by a probe program. `name` appears in every ToolResult; `warnings`
    list the protections that it lacks."""

    name: str
    detail: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Engine process, as recorded with a run. `versions` are those of its installed libraries."""

    role: str
    pid: int
    host: str
    versions: Mapping[str, str] = field(default_factory=dict)
