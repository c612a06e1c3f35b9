"""Frozen record types, independent of storage, plugins and torch.

Shapes: P prompt tokens, T sampled tokens of one action. Scores are points from 0 to 10; log-probabilities are nats;
durations are seconds. Missing values are None, never a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

Finish = Literal["stop", "length", "tool", "abort"]  # Why a sampler ended an action.
Phase = Literal["live", "after", "again"]
"""When a verdict was made: during the rollout, in hindsight, by `mappa judge`."""
NOBODY = "nobody"  # The blame of a verdict that blames no agent: it is known that nothing is wrong.
USER = "user"  # The blame of a verdict that blames the person who set the task or answers the agents.
ENVIRONMENT = "environment"  # The blame of a verdict that blames a tool, or a service that one needs.
TASK = "task"  # The blame of a verdict that blames the task: it lacks what nobody could know, or cannot be solved.
BLAME_BESIDE_AGENTS = frozenset({NOBODY, USER, ENVIRONMENT, TASK})  # Only blame of agents trains.
MAX_SCORE = 10.0  # Points of a perfect action; the fewest are 0.


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. `reference` is the ground truth, never shown to an agent; `files` maps names to read-only paths.
    Intervals count clusters, as tasks of one (made from one data set) are not independent. None: its own."""

    id: str
    prompt: str
    reference: str | None = None
    stratum: str = "all"
    cluster: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question_hash(self) -> str:
        """Hash of what is asked, the same for all tasks of a cluster: a coach that was fitted on a label of one of them
        cannot be certified on the others."""
        question = self.id if self.cluster is None else self.cluster
        return sha256(f"{self.stratum}\0{question}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """Tool call made by an action: a fenced block or a native call of the model's chat template."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    error: str | None = None
    """Why the call cannot be run (unclosed block, arguments that are not JSON): its result."""


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
    """Usage of `calls` provider calls and their cost in US dollars. `prompt_tokens` include `cached_tokens`,
    `completion_tokens` include `thinking_tokens`. None: not reported, or of unknown price."""

    calls: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    thinking_tokens: int | None = None
    usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        """Sum of both; a field that is None in either is None."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        total: dict[str, Any] = {name: None if None in pair else sum(pair) for name, pair in pairs.items()}
        return Usage(**total)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """Output of a sampler, trained on as it is. `text` is the decoded `tokens` without the stop token, up to the
    `stop_text` at which sampling ended (None: at none), whose tokens are among them; `logprobs` are nats of the
    temperature-scaled distribution, cut by top_p and top_k. The ids that the cut left at each token are its sampling
    mask, of `mask_sizes` ids (0: all ids). Policies behind an API have `usage` and no arrays."""

    text: str
    prompt_tokens: Int32 | None  # (P,)
    tokens: Int32 | None  # (T,), with the stop token if one was sampled
    logprobs: Float32 | None  # (T,)
    finish: Finish
    temperature: float = 1.0
    mask_tokens: Int32 | None = None  # (K,) token after token; None if nothing was cut
    mask_sizes: Int32 | None = None  # (T,)
    versions: tuple[VersionSpan, ...] = ()
    usage: Usage | None = None
    seconds: float = 0.0
    stop_text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """Change of one workspace file by one action. `size` is in bytes; sha256 and size are None for a deleted file."""

    path: str
    kind: Literal["created", "changed", "deleted"]
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of a tool call. A program that fails is a result (`error`); a sandbox that fails raises ToolError. All
    `attempts` but the last failed in the tool's infrastructure. `limit` is the one that stopped the program. The
    kernel holds all limits but those `watched`, which are looked at from time to time."""

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
    limit: str | None = None
    watched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """Violated file contract: the file at `path` is missing (reported by core) or cannot be used (by the workflow's
    `inspect`, whose label of the fault is `reason`: `columns`)."""

    agent: str
    kind: Literal["missing_input", "missing_output", "broken_input", "broken_output"]
    path: str
    detail: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Result of a workflow's `inspect` on the files of an agent. `over`: the agent has met its contract and says that
    it is done, which ends its turns. `findings` are sentences for the coach, with names from the workflow or the task
    alone; `facts` are JSON values for coaches that compute scores."""

    over: bool
    breaches: tuple[Breach, ...] = ()
    findings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One action of one agent: the unit of credit. It holds no verdict; verdicts refer to it by `id`.
    `reply` is the completion as a message (think text separated, native calls parsed), as other agents see it.
    `results` are those of `calls`, in order. `inspection` is made after the action, None if there is none. `tools`
    names the run's tools that were available; `own_tools` are answered by the workflow itself: their calls are in
    `reply` alone. `stop` are texts at which sampling was to end. `prompt` is the version of the agent's prompt, None if
    the workflow names none.
    """

    id: str
    agent: str
    turn: int  # index among the agent's own actions, from 0
    position: int  # index among all actions of the trajectory, from 0
    policy: str
    messages: tuple[Message, ...]
    reply: Message
    completion: Completion
    tools: tuple[str, ...] = ()
    own_tools: tuple[ToolSpec, ...] = ()
    stop: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # relative paths in the workspace before the action
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    breaches: tuple[Breach, ...] = ()
    inspection: Inspection | None = None
    strata: Mapping[str, str] = field(default_factory=dict)
    prompt: str | None = None

    @property
    def truncated(self) -> bool:
        """Whether the action hit its token limit."""
        return self.completion.finish == "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A coach's judgement of one step. `score` is in points 0-10, and None unless `status` is `scored`.

    A coach creates it with `scored`, `abstained` or `failed`; the stage fills in step, coach, phase and time. `blame`
    names the agent at fault, or one of `BLAME_BESIDE_AGENTS`; None: unknown. `category`: see `coach.CATEGORIES`.
    `suspicion` ranks the actions of a trajectory by where to look first. `correction` is a complete better action.

    `question` is the content address of the full request (template, model, schema, evidence); `template_hash`, `model`
    (as the provider reported it), `seed` and `raw_reply` belong to the call that gave the score. The `usage` of a
    verdict that a cassette `replayed` was paid when it was recorded, not again.
    """

    status: Literal["scored", "abstained", "failed"]
    score: float | None = None
    reasoning: str = ""
    blame: str | None = None
    category: str | None = None
    suspicion: float | None = None
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
        """A verdict of `score` points (0-10)."""
        return cls(status="scored", score=float(score), reasoning=reasoning, blame=blame, correction=correction)

    @classmethod
    def abstained(cls, reasoning: str) -> Verdict:
        """The verdict of a coach that declines to judge: no score, no gradient."""
        return cls(status="abstained", reasoning=reasoning)

    @classmethod
    def failed(cls, error: str) -> Verdict:
        """The verdict of a coach that failed: no score, no gradient, counted against `coach.max_missing`."""
        return cls(status="failed", error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a `labeller` says of a trajectory; no agent and no coach sees it. `guilt`: the `agent` at fault (or one of
    `BLAME_BESIDE_AGENTS`), its decisive `step`, and what kind of failure it is, in the labeller's own words; `quality`:
    the `value` (1 right, 0 neither, -1 wrong) of a step or, without one, of the whole."""

    kind: Literal["guilt", "quality"]
    trajectory: str
    step: str | None = None
    agent: str | None = None
    value: float | None = None
    reason: str = ""
    category: str | None = None
    labeller: str = "people"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trajectory ended early: the error type and its message."""

    kind: str
    message: str
    quoted: Mapping[str, int] = field(default_factory=dict)  # Characters, by step, in a prompt that did not fit.


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """Outcome of the `number`-th rollout with the action at `position` replaced and all later ones sampled anew."""

    position: int
    number: int
    outcome: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One rollout: the steps of all agents in order, their verdicts and the outcome, or why it ended early."""

    id: str
    task: Task
    sample: int  # from 0, among the trajectories of its task in this iteration
    iteration: int  # from 0
    steps: tuple[Step, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    outcome: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None
    seconds: float = 0.0
    counterfactuals: tuple[Counterfactual, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its 95 % confidence interval, in the unit of the measured value."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """An agent's purpose (shown to the coach) and file contract. `rubric`: Markdown template that a coach judges by."""

    brief: str
    needs: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    rubric: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """Everything that a coach may see of one step. `task.reference` and `truth`, the workflow's description of the
    ground truth for this action, are None unless the recipe shows them for this agent (`coach.reference_for`). `later`,
    `outcome` and `metric`, the name of the outcome that success is read from, are None unless the coach judges in
    hindsight. `team` holds the roles of all agents by name."""

    task: Task
    role: Role
    step: Step
    team: Mapping[str, Role] = field(default_factory=dict)
    earlier: tuple[Step, ...] = ()
    later: tuple[Step, ...] | None = None
    outcome: Mapping[str, float] | None = None
    metric: str | None = None
    truth: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of one action. `top_p` 1 and `top_k` 0 cut nothing. It ends at the first text of `stop`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of one tool call, child processes included: seconds of wall and CPU time; bytes of memory, of one file and
    of each output stream; concurrent processes and threads; total bytes and number of the files that it leaves."""

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
    """Sandbox of a tool, verified by a probe program; `warnings` list the protections that it lacks."""

    name: str
    detail: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Engine process, as recorded with a run. `versions` are those of its installed libraries; `lost` says how each
    process ended that it replaces, in order."""

    role: str
    pid: int
    host: str
    versions: Mapping[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
