"""The schema of a run: every key that a recipe, a config file or `key=value` may set, its default and its meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KEY = "key"
"""In the metadata of a field: how settings name it, where its own name cannot be that (a keyword of Python)."""


@dataclass
class Use:
    """A choice of one offer: `use` names it, `options` are checked against the offer's own dataclass."""

    use: str = "???"
    options: Any = field(default_factory=dict)


@dataclass
class RunSection:
    name: str | None = None
    """Name of the run folder; None makes one of plugin, recipe, time and four hex digits."""
    root: str = "runs"
    """Folder that holds run folders."""


@dataclass
class SamplingSection:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    """Tokens one action may sample."""
    concurrency: int = 256
    """Trajectories under way at once."""


@dataclass
class AgentSection:
    policy: str | None = None
    """Name of the agent's policy; None: one of its own, named like the agent."""
    max_tokens: int | None = None
    temperature: float | None = None


@dataclass
class LoraSection:
    rank: int = 16
    alpha: float = 32.0
    """What the adapter adds is multiplied by alpha / rank."""
    rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead."""
    targets: list[str] | None = None
    """Layers with an adapter, by the last part of their names (q_proj); None: all linear ones but the output head."""


@dataclass
class PolicySection:
    model: str | None = None
    """A Hugging Face id, a folder, or `package:NAME/PATH` for a folder inside an installed package."""
    kind: str = "full"
    """`full`: own weights, trained. `lora`: an adapter of its own, trained on `model`, which its adapters share.
    `frozen`: `model` as it is. `api`: none here; `use` names who is asked."""
    lora: LoraSection = field(default_factory=LoraSection)
    """The adapter of a `lora` policy."""
    start: str | None = field(default=None, metadata={KEY: "from"})
    """Start with the weights of another run: RUN@best, RUN@last or RUN@ITERATION; RUN/POLICY@… where the policy has
    another name there. RUN is a run folder, a name in `run.root`, or a URL that `checkpoint.url` led to."""
    use: str | None = None
    """The provider of an `api` policy (openai, gemini, anthropic, …)."""
    options: Any = field(default_factory=dict)
    value_head: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to the model's chat template."""


@dataclass
class LimitsSection:
    """What one call of a tool may use, together with all that it starts."""

    wall_s: float = 30.0
    cpu_s: float = 30.0
    memory_mb: int = 1024
    file_mb: int = 64
    """Size of one file."""
    output_kb: int = 64
    processes: int = 64
    """Processes and threads at once."""
    workspace_mb: int = 512
    """Size of all files that a trajectory's agents may leave."""
    workspace_files: int = 10000


@dataclass
class ToolSection:
    use: str = "???"
    options: Any = field(default_factory=dict)
    limits: LimitsSection = field(default_factory=LimitsSection)
    retries: int = 2
    """How often the calls of an action are made again, in a workspace as it was before them, where the tool's machinery
    failed."""


@dataclass
class CassetteSection:
    """Verdicts kept by what was asked, so that nothing is paid twice."""

    mode: str = "auto"
    """off | record (ask, and keep) | replay (never ask: what is not there fails) | auto (ask for what is not there)"""
    path: str | None = None
    """A file that runs may share; None: `cassette.db` in the run folder."""


@dataclass
class BiasSection:
    """Correction of a coach's preferences: what scores differ by between strata at equal outcome."""

    correct: bool = False
    """Correct from the first iteration on that has something to learn from."""
    decay: float = 0.9
    """Weight of an iteration against the next one."""
    shrink: float = 20.0
    """Actions' worth of doubt: of the gap between two strata with that many actions each, half is taken off."""
    most: float = 3.0
    """Points beyond which no score is moved."""


@dataclass
class DriftSection:
    """Watch over the coach's gaps between strata. An alarm is answered with `warn`, `correct` (from then on) or `pause`
    (stop with a checkpoint)."""

    level: str = "warn"
    """When a gap is there that was not acknowledged."""
    widening: str = "warn"
    """When a gap grows, acknowledged or not."""
    acknowledged: list[str] = field(default_factory=list)
    """Gaps that are known and wanted, as `AGENT/STRATIFIER`."""
    least: float = 0.25
    """Points below which a gap, or what it has grown by, is left alone however certain it is."""


@dataclass
class CoachSection:
    use: str = "???"
    options: Any = field(default_factory=dict)
    by_agent: dict[str, Use] = field(default_factory=dict)
    """Another coach for the agents named here."""
    reference_for: list[str] = field(default_factory=list)
    """Agents whose coach is shown the truth. Agents never see it."""
    max_missing: float = 0.1
    """Share of an iteration's actions without a verdict beyond which the run stops with a checkpoint."""
    reward: dict[str, float] = field(default_factory=lambda: {"live": 1.0})
    """Weight of each phase's verdicts in the reward."""
    timeout_s: float = 120.0
    """Seconds one verdict may take before it counts as failed."""
    hindsight: Use | None = None
    """The coach that judges all actions of a trajectory once its outcome is known; its verdicts are those of phase
    `after` in `reward`."""
    spend_usd: float | None = None
    """What coaches and `api` policies may cost in all; then the run stops with a checkpoint. None: no cap."""
    cassette: CassetteSection = field(default_factory=CassetteSection)
    strata: list[str] = field(default_factory=lambda: ["task"])
    """Stratifiers that the coach's bias is looked for in: `task`, and those that the workflow offers."""
    bias: BiasSection = field(default_factory=BiasSection)
    drift: DriftSection = field(default_factory=DriftSection)


@dataclass
class CounterfactualSection:
    """What an action was worth: the outcome less that of the same trajectory with another action in its place, from
    where the team plays on. The shaper `difference` reads it."""

    use: str = "none"
    """none | sibling (of another trajectory of the task: same agent, turn and prompt) | resample (what the policy
    samples now) | default (a text)"""
    samples: int = 1
    """Rollouts per action, with `sibling` at most as many as there are siblings. `default` has one."""
    agents: list[str] = field(default_factory=list)
    """Whose actions are replaced; none named: everyone's."""
    share: float = 1.0
    """Share of the trajectories whose actions are replaced, drawn by name."""
    texts: dict[str, str] = field(default_factory=dict)
    """What an agent says by `default`, in place of the workflow's own `default_actions`."""


@dataclass
class CreditSection:
    counterfactual: CounterfactualSection = field(default_factory=CounterfactualSection)


@dataclass
class EstimatorSection:
    use: str = "reinforce_plus_plus"
    options: Any = field(default_factory=dict)
    by_agent: dict[str, Use] = field(default_factory=dict)


@dataclass
class CorrectionSection:
    """Importance weights between the log-probabilities of samplers and learners, on the policy loss."""

    kind: str = "truncate"
    """truncate (at the cap) | mask (0 above the cap and below the floor) | none. Figures are shown in any case."""
    level: str = "token"
    """token | sequence: weights of tokens, or of whole actions (the product over their tokens)."""
    cap: float = 2.0
    floor: float | None = None
    """Weight below which `mask` gives 0; null: the inverse of the cap."""


@dataclass
class SupervisedSection:
    """A supervised term beside the policy loss, on the actions that a coach would rather have seen
    (`coach.options.correction`): `weight` times the mean of -log p over their tokens in an optimiser step."""

    weight: float = 0.0
    """0: none."""
    max_score: float = 4.0
    """Only where the verdict's score is at most this (points, 0-10)."""
    truth: bool = True
    """Also what coaches wrote who were shown the truth (`coach.reference_for`): it may hold the truth."""


@dataclass
class HealthSection:
    """Limits beyond which a policy's figures raise a warning, by their median over five iterations. null: no such
    warning. None of them stops a run."""

    entropy: float | None = 0.02
    """Least share of its entropy at the start."""
    grad_norm: float | None = 3.0
    """Largest norm of the gradient in two iterations running, in multiples of the median of those before."""
    clip_share: float | None = 0.3
    """Largest share of tokens that the loss clips."""
    ess: float | None = 0.3
    """Least effective sample size of the importance weights, as a share of the sample."""
    kl: float | None = 0.5
    """Largest divergence from the reference, nats per token."""
    equal_groups: float | None = 0.95
    """Largest share of groups of siblings whose rewards are all equal."""


@dataclass
class TrainSection:
    iterations: int = 1
    prompts: int = 16
    """Tasks per iteration."""
    stratified: bool = False
    """Give every iteration its share of every stratum of tasks, as close to it as whole numbers allow."""
    samples: int = 2
    """Trajectories per task."""
    epochs: int = 1
    """Passes over an iteration's rows."""
    minibatch_rows: int | None = None
    """Rows per optimiser step; None: all rows of a policy in one step."""
    micro_tokens: int = 16384
    """Token budget of one forward and backward pass; changes memory and speed, never the gradient."""
    learning_rate: float = 1e-6
    schedule: str = "constant"
    """constant | linear | cosine, over the whole run"""
    warmup_iterations: int = 0
    min_lr_share: float = 0.0
    """Where `linear` and `cosine` end, as a share of learning_rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    """Norm to which a policy's gradient is clipped."""
    mean: str = "token"
    """token | sequence | fixed: what the loss of a step is a mean over. Every token counts the same, or every action
    does, or each action's sum is divided by `mean_length`."""
    mean_length: int | None = None
    """Tokens that `mean: fixed` divides by, whatever the actions' lengths; usually `sampling.max_tokens`."""
    entropy_coef: float = 0.0
    """Weight of the mean entropy of the policy's distributions over the next token, which is taken off the loss."""
    value_coef: float = 0.5
    """Weight of the value loss, where a policy has a value head."""
    value_clip: float | None = None
    """How far a value moves from what it was before the update until its loss has no gradient; None: no bound."""
    correction: CorrectionSection = field(default_factory=CorrectionSection)
    supervised: SupervisedSection = field(default_factory=SupervisedSection)
    health: HealthSection = field(default_factory=HealthSection)
    max_lost: float = 0.25
    """Share of an iteration's trajectories lost to failures of tools beyond which the run stops with a checkpoint."""
    max_skipped: int = 3
    """Optimiser steps of one policy in a row, skipped as loss or gradient was not finite, at which the run stops with a
    checkpoint."""
    max_restarts: int = 2
    """How often a run that lost a process of its engine goes on from its last checkpoint before it ends."""


@dataclass
class EvalSection:
    problems: int | None = None
    """Tasks per evaluation, the first ones of the split; None: all of them."""
    samples: int = 1
    every: int = 0
    """Evaluate every so many iterations between start and end; 0: only before and after."""
    split: str = "eval"
    """Tasks that are evaluated on: eval | train."""
    temperature: float = 1.0
    """0 is greedy."""
    coach: bool = False
    """Also ask the coach during evaluation. Accuracy never depends on it."""
    selection: float | None = 0.5
    """Where `checkpoint.best` is on: share of the tasks, by hash, that the best checkpoint is chosen on; the others are
    what is reported, before training and of that checkpoint. null: it is chosen on all of them, and not reported."""


@dataclass
class CheckpointSection:
    every: int = 10
    """Iterations between checkpoints; one is always written at the end."""
    keep: int = 2
    """Latest checkpoints that stay."""
    best: bool = False
    """Also keep one of the best evaluation so far, for RUN@best (see `eval.selection`)."""
    url: str | None = None
    """Folder elsewhere (s3://…, gs://…, file://…) that every checkpoint is copied to, under the name of the run."""


@dataclass
class StoreSection:
    scratch: str | None = None
    """Local folder for the live database when the run folder is on a network file system."""


@dataclass
class RunConfig:
    """Everything that decides a run."""

    seed: int = 0
    """Decides all that is drawn: the order of tasks, every sample, what adapters start with."""
    run: RunSection = field(default_factory=RunSection)
    tasks: Use = field(default_factory=Use)
    """Where tasks come from."""
    workflow: Use = field(default_factory=Use)
    """Who acts, in which order, seeing what."""
    agents: dict[str, AgentSection] = field(default_factory=dict)
    policies: dict[str, PolicySection] = field(default_factory=dict)
    """By name; `default` is what a policy that is not named gets."""
    sampling: SamplingSection = field(default_factory=SamplingSection)
    tools: dict[str, ToolSection] = field(default_factory=dict)
    coach: CoachSection = field(default_factory=CoachSection)
    credit: CreditSection = field(default_factory=CreditSection)
    shapers: list[Use] = field(default_factory=list)
    """Verdicts to rewards, one after the other."""
    estimator: EstimatorSection = field(default_factory=EstimatorSection)
    loss: Use = field(default_factory=lambda: Use(use="ppo"))
    """What is minimised per token."""
    train: TrainSection = field(default_factory=TrainSection)
    engine: Use = field(default_factory=lambda: Use(use="local"))
    """Where policies sample and learn."""
    eval: EvalSection = field(default_factory=EvalSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    store: StoreSection = field(default_factory=StoreSection)
    trackers: list[Use] = field(default_factory=list)
    """Where figures go beside the run folder."""
