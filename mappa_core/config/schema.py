"""Schema of a run's config: every key that a recipe, a config file or `key=value` may set, its default and meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mappa_core.protocols import Split

SETTING_KEY = "key"  # Metadata entry of a field with its key in settings, for keys that are Python keywords.

CassetteMode = Literal["off", "record", "replay", "auto"]
Replacement = Literal["none", "sibling", "resample", "default"]
Overflow = Literal["unsolved", "unknown"]
CheckpointDtype = Literal["float32", "bfloat16"]


@dataclass
class Use:
    """Choice of one offer: `use` names it, `options` are validated against the offer's options dataclass."""

    use: str = "???"
    options: Any = field(default_factory=dict)


@dataclass
class RunSection:
    name: str | None = None
    """Name of the run folder; None: generated from plugin, recipe, time and four hex digits."""
    root: str = "runs"
    """Parent folder of run folders."""


@dataclass
class SamplingSection:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    """Maximum number of sampled tokens per action."""
    concurrency: int = 256
    """Maximum number of concurrent trajectories."""


@dataclass
class AgentSection:
    policy: str | None = None
    """Name of the agent's policy; None: a policy of its own, named after the agent."""
    max_tokens: int | None = None
    temperature: float | None = None
    prompt: str | None = None
    """Text in place of the prompt that the workflow names for the agent."""


@dataclass
class LoraSection:
    rank: int = 16
    alpha: float = 32.0
    """The adapter's output is multiplied by alpha / rank."""
    rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead."""
    targets: list[str] | None = None
    """Adapted layers, by the last part of their names (q_proj); None: all linear layers except the output head."""


@dataclass
class PolicySection:
    """Weights, or a model behind an API, that agents act with."""

    model: str | None = None
    """A Hugging Face id, a folder, a GGUF file, or `package:NAME/PATH` for one of these inside an installed package."""
    kind: Literal["full", "lora", "frozen", "api"] = "full"
    """`full`: all weights are trained. `lora`: an adapter is trained; adapters share the base weights. `frozen`: none
    is trained. `api`: no weights; `use` names the provider."""
    lora: LoraSection = field(default_factory=LoraSection)
    start: str | None = field(default=None, metadata={SETTING_KEY: "from"})
    """Initial weights from another run: RUN@best, RUN@last or RUN@ITERATION; RUN/POLICY@… for a policy of another name.
    RUN is a run folder, a name in `run.root`, or a URL below `checkpoint.url`."""
    use: str | None = None
    """The provider of an `api` policy (openai, gemini, anthropic, …)."""
    options: Any = field(default_factory=dict)
    value_head: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to the model's chat template."""


@dataclass
class LimitsSection:
    """Resource limits of one tool call, child processes included. Those of a tool that runs no programs are its own to
    keep; a call of it that goes on 60 seconds longer than `wall_s` has failed."""

    wall_s: float = 30.0
    cpu_s: float = 30.0
    memory_mb: int = 1024
    file_mb: int = 64
    """Maximum size of one file."""
    output_kb: int = 64
    processes: int = 64
    """Maximum number of concurrent processes and threads."""
    workspace_mb: int = 512
    """Maximum total size of the files that a trajectory's agents leave."""
    workspace_files: int = 10000


@dataclass
class ToolSection:
    """A tool and its limits."""

    use: str = "???"
    options: Any = field(default_factory=dict)
    limits: LimitsSection = field(default_factory=LimitsSection)
    retries: int = 2
    """Retries of an action's calls, in the workspace as it was before, if the tool's infrastructure failed."""


@dataclass
class CassetteSection:
    """Store of verdicts by request, so that no call is paid for twice."""

    mode: CassetteMode = "auto"
    """`record`: call, and store. `replay`: never call; a missing verdict fails. `auto`: call only for missing ones."""
    path: str | None = None
    """File, which several runs may share; None: `cassette.db` in the run folder."""


@dataclass
class CoachSection:
    """The coach, and what a run does with its verdicts."""

    use: str = "???"
    options: Any = field(default_factory=dict)
    by_agent: dict[str, Use] = field(default_factory=dict)
    """Coaches of individual agents, by agent."""
    reference_for: list[str] = field(default_factory=list)
    """Agents whose coach is shown the ground truth. Agents themselves never see it."""
    max_missing: float = 0.1
    """Share of an iteration's actions without a verdict above which the run stops with a checkpoint; of failed verdicts
    above which `judge` and `observe` are exit code 3."""
    reward: dict[str, float] = field(default_factory=lambda: {"live": 1.0})
    """Weight of each phase's verdicts in the reward."""
    timeout_s: float = 300.0
    """Seconds after which a verdict counts as failed, without those in which a call waits for a slot or a rate limit;
    at least `limits.attempts` times `limits.timeout_s` of its coach."""
    hindsight: Use | None = None
    """Coach that judges all actions once the outcome is known: the phase `after` in `reward`."""
    spend_usd: float | None = None
    """Maximum total cost of coaches and `api` policies in US dollars, reserved before each call; at it the run stops
    with a checkpoint. None: no limit."""
    cassette: CassetteSection = field(default_factory=CassetteSection)


@dataclass
class CounterfactualSection:
    """Counterfactual credit of an action, which the shaper `difference` reads: the outcome minus that of the same
    trajectory with the action replaced and all later actions sampled anew."""

    use: Replacement = "none"
    """`sibling`: from a trajectory of the same agent, turn and prompt; `resample`: a new one; `default`: a text."""
    samples: int = 1
    """Rollouts per action; `sibling` has at most one per sibling, `default` has one."""
    agents: list[str] = field(default_factory=list)
    """Agents whose actions are replaced; empty: all agents."""
    share: float = 1.0
    """Share of the trajectories whose actions are replaced, a function of seed and ids."""
    default_actions: dict[str, str] = field(default_factory=dict)
    """Default action per agent, overriding the workflow's `default_actions`."""


@dataclass
class CreditSection:
    counterfactual: CounterfactualSection = field(default_factory=CounterfactualSection)
    overflow: Overflow = "unsolved"
    """What a rollout is worth that ended because a prompt outgrew the context window. `unsolved`: outcome 0, and 0
    points for the actions that wrote the long texts in that prompt; `unknown`: like any failure, no outcome."""


@dataclass
class EstimatorSection:
    use: str = "reinforce_plus_plus"
    options: Any = field(default_factory=dict)
    by_agent: dict[str, Use] = field(default_factory=dict)


@dataclass
class PromptsSection(Use):
    """Optimiser that improves the prompts of agents between iterations."""

    every: int = 10
    """Iterations between two rounds."""
    policy: str = "proposer"
    """The policy, of kind `api`, that writes prompts."""


@dataclass
class CorrectionSection:
    """Importance weights between the log-probabilities of samplers and learners, on the policy loss."""

    kind: Literal["truncate", "mask", "none"] = "truncate"
    """`truncate` at the cap, or `mask`: 0 above the cap and below the floor. Metrics are logged in any case."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or per action (the product over its tokens)."""
    cap: float = 2.0
    floor: float | None = None
    """Weight below which `mask` sets 0; null: the inverse of the cap."""
    geometric_low: float | None = None
    """Geometric mean of an action's ratios below which the whole action weighs 0, whatever the kind; null: no bound."""
    geometric_high: float | None = None
    """The same above it."""


@dataclass
class SupervisedSection:
    """Supervised loss term on the coach's corrections: `weight` times the mean of -log p over a step's tokens of
    them."""

    weight: float = 0.0
    """0: no supervised term."""
    max_score: float = 4.0
    """Use a correction only if the verdict's score is at most this (points, 0-10)."""
    truth: bool = True
    """Also use corrections of coaches that were shown the ground truth, which may contain it."""


@dataclass
class HealthSection:
    """Limits on a policy's metrics, medians over five iterations, beyond which a warning is raised; null: none."""

    entropy: float | None = 0.02
    """Minimum entropy as a share of the initial entropy."""
    grad_norm: float | None = 3.0
    """Maximum gradient norm in two consecutive iterations, in multiples of the earlier ones' median."""
    clip_share: float | None = 0.3
    """Maximum share of tokens that the loss clips."""
    ess: float | None = 0.3
    """Minimum effective sample size of the importance weights, as a share of the sample."""
    kl: float | None = 0.5
    """Maximum KL divergence from the reference policy in nats per token."""
    equal_groups: float | None = 0.95
    """Maximum share of sibling groups whose rewards are all equal."""


@dataclass
class TrainSection:
    """Settings of learning; an engine reads the same."""

    iterations: int = 1
    prompts: int = 16
    """Tasks per iteration."""
    stratified: bool = False
    """Sample every stratum of tasks in proportion to its size in every iteration, up to rounding."""
    samples: int = 2
    """Trajectories per task."""
    dynamic_sampling: int = 0
    """Maximum number of rounds in which an iteration replaces tasks whose samples have equal rewards (DAPO)."""
    epochs: int = 1
    """Passes over an iteration's rows."""
    minibatch_rows: int | None = None
    """Rows per optimiser step; None: all rows of a policy in one step."""
    micro_tokens: int = 16384
    """Token budget of one forward and backward pass; affects memory and speed, never the gradient."""
    learning_rate: float = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate over the whole run."""
    warmup_iterations: int = 0
    min_lr_share: float = 0.0
    """Final learning rate of `linear` and `cosine`, as a share of learning_rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    """Maximum norm to which a policy's gradient is clipped."""
    mean: Literal["token", "sequence", "fixed"] = "token"
    """A step's loss: every token weighs the same, or every action, or an action's sum is divided by `mean_length`."""
    mean_length: int | None = None
    """Number of tokens that `mean: fixed` divides by; usually `sampling.max_tokens`."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus: the mean entropy of the next-token distributions, subtracted from the loss."""
    value_coef: float = 0.5
    """Weight of the value loss of policies with a value head."""
    value_clip: float | None = None
    """Clip range of values around those before the update, without gradient beyond; None: no clipping."""
    correction: CorrectionSection = field(default_factory=CorrectionSection)
    supervised: SupervisedSection = field(default_factory=SupervisedSection)
    health: HealthSection = field(default_factory=HealthSection)
    max_tool_failure_share: float = 0.25
    """Share of an iteration's trajectories lost to tool failures above which the run stops with a checkpoint."""
    max_skipped: int = 3
    """Consecutive steps of a policy, skipped for a non-finite loss or gradient, at which the run stops."""
    max_restarts: int = 3
    """How often a run resumes from its last checkpoint, after the engine was lost or failed, before it ends."""


@dataclass
class EvalSection:
    problems: int | None = None
    """Tasks per evaluation, the first ones of the split; None: all tasks."""
    samples: int = 1
    before: bool = True
    """Also evaluate before training; otherwise the gain is unknown. (`mappa warm-start` does not, by default.)"""
    every: int = 0
    """Iterations between evaluations during training; 0: evaluate only before and after."""
    split: Split = "eval"
    temperature: float = 1.0
    """0: greedy decoding."""
    coach: bool = False
    """Also call the coach during evaluation. Accuracy never depends on it."""
    selection: float | None = 0.5
    """With `checkpoint.best`: share of the tasks, by hash, on which the best checkpoint is selected; the others give
    the reported result, before training and of it. null: it is selected on all tasks, and not reported."""


@dataclass
class CheckpointSection:
    every: int = 10
    """Iterations between checkpoints; one is always written at the end."""
    keep: int = 2
    """Number of latest checkpoints to keep."""
    best: bool = False
    """Also keep the checkpoint of the best evaluation so far, for RUN@best (see `eval.selection`)."""
    dtype: CheckpointDtype = "float32"
    """Of weights: `float32` resumes exactly; `bfloat16` takes half the space (not of adapters and optimisers)."""
    url: str | None = None
    """Remote folder (s3://…, gs://…, file://…) that every checkpoint is copied to, under the name of the run."""


@dataclass
class StoreSection:
    scratch: str | None = None
    """Local folder for the live database if the run folder is on a network file system."""


@dataclass
class RunConfig:
    """Complete config of a run."""

    seed: int = 0
    """Seed of all randomness: the order of tasks, every sample, the initialisation of adapters."""
    run: RunSection = field(default_factory=RunSection)
    tasks: Use = field(default_factory=Use)
    workflow: Use = field(default_factory=Use)
    """Workflow: which agent acts when, and what it sees."""
    agents: dict[str, AgentSection] = field(default_factory=dict)
    policies: dict[str, PolicySection] = field(default_factory=dict)
    """By name; `default` applies to policies that are not named."""
    sampling: SamplingSection = field(default_factory=SamplingSection)
    tools: dict[str, ToolSection] = field(default_factory=dict)
    coach: CoachSection = field(default_factory=CoachSection)
    credit: CreditSection = field(default_factory=CreditSection)
    shapers: list[Use] = field(default_factory=list)
    """Applied in order."""
    estimator: EstimatorSection = field(default_factory=EstimatorSection)
    prompts: PromptsSection | None = None
    """Improvement of prompts between iterations; null: they stay as they are."""
    loss: Use = field(default_factory=lambda: Use(use="ppo"))
    train: TrainSection = field(default_factory=TrainSection)
    engine: Use = field(default_factory=lambda: Use(use="local"))
    eval: EvalSection = field(default_factory=EvalSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    store: StoreSection = field(default_factory=StoreSection)
    trackers: list[Use] = field(default_factory=list)
    """Experiment trackers that metrics are logged to, besides the run folder."""
