"""Builds, opens and closes everything that a run works with."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mappa.config.compose import ComposedConfig
from mappa.rollout.team import Team
from mappa.session.api_only_engine import ApiOnlyEngine
from mappa.session.coaches import RunCoaches, build_coaches
from mappa.session.credit import (
    build_estimator,
    build_experience_builder,
    check_difference_shaper,
    check_dynamic_sampling,
    resolve_default_actions,
)
from mappa.session.eval_split import HeldOutTasks, split_held_out
from mappa.session.expected_actions import ActionTokens, add_expected_actions, expect_actions_on
from mappa.session.policies import (
    assign_policies,
    build_api_policies,
    build_policy_specs,
    check_estimators,
    check_scored,
    check_temperatures,
    find_starts,
    find_teachers,
    policies_with_weights,
    reads_reference,
)
from mappa.session.source_tasks import SourceTasks, load_tasks
from mappa.session.toolset import Toolset, open_tools
from mappa_core.calls.api_policy import ApiPolicy
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.config.agent_names import check_agent_names
from mappa_core.config.schema import AgentSection, RunConfig
from mappa_core.credit.build_experience import ExperienceBuilder
from mappa_core.errors import ConfigError, TaskError
from mappa_core.plugins import Registry
from mappa_core.protocols import (
    AnswerGrader,
    Coach,
    Engine,
    Estimator,
    Loss,
    PolicySpec,
    PromptOptimizer,
    Provider,
    Split,
    TaskSource,
    Tracker,
    Workflow,
)
from mappa_core.records import Sampling, Sandbox, Task
from mappa_core.redaction import clean_name, keep_environment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Session:
    """The opened objects of one run. `team` has no coaches if the session was opened without a coach."""

    composed: ComposedConfig
    workflow: Workflow
    source: TaskSource
    engine: Engine  # with `policies` loaded
    team: Team
    sandboxes: Mapping[str, Sandbox]  # of the tools that run programs, by tool name
    policies: tuple[PolicySpec, ...]
    coaches: tuple[Coach, ...]  # each once, in the order of the config
    experience_builder: ExperienceBuilder
    default_actions: Mapping[str, str]  # per agent, for counterfactual rollouts that replace actions by them
    estimator: Estimator
    prompt_optimizer: PromptOptimizer | None
    loss: Loss | None  # None if nothing is learned, or every policy is behind an API
    trackers: tuple[tuple[str, Tracker], ...]  # with the names of their offers
    _tasks: dict[Split, tuple[Task, ...]] = field(default_factory=dict)  # as loaded: a source may take long to read

    @property
    def config(self) -> RunConfig:
        return self.composed.config

    @property
    def deterministic(self) -> bool:
        """Whether sampling is reproducible bit for bit."""
        # A policy behind an API may be there only to propose prompts, and play no agent.
        is_api_played = any(policy in self.team.api_policies for policy in self.team.policy_of.values())
        return self.engine.deterministic and not is_api_played

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Providers that coaches and policies call: what agents see and write is sent to them."""
        return _providers(self.coaches, self.team.api_policies.values())

    @property
    def reads_reference(self) -> bool:
        """Whether anything reads the log-probabilities of the references."""
        return reads_reference(self.config)

    @property
    def trained_policies(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.policies if spec.trained)

    def tasks(self, split: Split) -> tuple[Task, ...]:
        """Load the tasks of a split. Raises as `load_tasks`; the message says where the settings that it names come
        from."""
        if split not in self._tasks:
            try:
                self._tasks[split] = load_tasks(self.source, self.config, split)
            except TaskError as error:
                raise TaskError(self.composed.tell_origins(str(error))) from error
        return self._tasks[split]

    def source_tasks(self) -> SourceTasks:
        """Finds the tasks of stored trajectories in the source."""
        return SourceTasks(self.config, self.workflow, lambda: self.source)

    def held_out(self) -> HeldOutTasks:
        """Tasks of evaluations, the same every time. Raises as `tasks` and `split_held_out`."""
        split: Any = self.config.eval.split
        return split_held_out(self.tasks(split), self.config)

    def with_prompts(self, prompts: Mapping[str, str]) -> Session:
        """The same session with other prompts of some agents."""
        workflow = self.workflow.with_prompts(prompts)
        return replace(self, workflow=workflow, team=replace(self.team, workflow=workflow))

    def team_for(self, split: Split) -> Team:
        """The team for `split`: evaluation has its own temperature and, unless `eval.coach`, no coaches."""
        if split == "train":
            return self.team
        section = self.config.eval
        sampling = {
            agent: replace(chosen, temperature=section.temperature) for agent, chosen in self.team.sampling.items()
        }
        team = replace(self.team, sampling=sampling)
        return team if section.coach else replace(team, coach_of={}, hindsight=None)


@asynccontextmanager
async def open_session(
    composed: ComposedConfig, registry: Registry, *, learning: bool, coach: bool, loaded: Path | None = None
) -> AsyncIterator[Session]:
    """Build everything that `composed` names, open the tools and the engine, and close all of it at the end.

    Args:
        learning: whether policies will be updated (an engine needs more memory for it).
        coach: whether to build coaches; False for an evaluation without one, which needs no keys.
        loaded: folder of the policies of a checkpoint that will be loaded; None: they start from `policies.*.from`.

    Raises InputError (of config, plugin or model) before anything is written.
    """
    # Before anything is built: keys are masked in what a plugin logs or raises while it starts.
    keep_environment()
    async with AsyncExitStack() as stack:
        builder = _SessionBuilder(composed, registry, stack, loaded=loaded)
        yield await builder.session(learning=learning, coach=coach)


class _SessionBuilder:
    """Builds one session and registers its objects on `stack` for closing."""

    def __init__(
        self, composed: ComposedConfig, registry: Registry, stack: AsyncExitStack, *, loaded: Path | None
    ) -> None:
        self._composed = composed
        self._config = composed.config
        self._loaded = loaded
        self._registry = registry
        self._stack = stack

    async def session(self, *, learning: bool, coach: bool) -> Session:
        config, registry = self._config, self._registry
        workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
        self._stack.push_async_callback(workflow.close)
        check_agent_names(config.workflow.use, workflow.agents)
        _check_agents(config, tuple(workflow.agents))
        workflow = _replace_prompts(config, workflow)
        if learning:
            check_estimators(config, registry, tuple(workflow.agents))
            check_temperatures(config, tuple(workflow.agents))
        source = registry.build("tasks", config.tasks.use, config.tasks.options)
        run_coaches = build_coaches(config, registry, workflow) if coach else RunCoaches()
        for built_coach in run_coaches.coaches:
            self._stack.push_async_callback(built_coach.close)
        experience_builder = build_experience_builder(config, registry, workflow)
        check_difference_shaper(config, experience_builder.shapers)
        default_actions = resolve_default_actions(config, workflow)
        trackers, estimator = self._trackers(), build_estimator(config, registry)
        optimizer = _build_prompt_optimizer(config, registry, workflow) if learning else None
        has_loss = learning and policies_with_weights(config, tuple(workflow.agents))
        loss = registry.build("losses", config.loss.use, config.loss.options) if has_loss else None
        # What takes long comes last, tools and then the engine: a wrong setting is found before a model is loaded.
        toolset = await open_tools(config, registry, self._stack)
        teachers = find_teachers(config, tuple(workflow.agents), estimator) if learning else ()
        tasks = self._learned_tasks(source) if learning else {}
        expected = expect_actions_on(tasks.get("train", ()), config, workflow)
        team, engine, specs = await self._team(workflow, source, run_coaches, toolset, learning, teachers, expected)
        return Session(
            composed=self._composed,
            workflow=workflow,
            source=source,
            engine=engine,
            team=team,
            sandboxes=toolset.sandboxes,
            policies=specs,
            coaches=run_coaches.coaches,
            experience_builder=experience_builder,
            default_actions=default_actions,
            estimator=estimator,
            prompt_optimizer=optimizer,
            loss=loss,
            trackers=trackers,
            _tasks=tasks,
        )

    def _learned_tasks(self, source: TaskSource) -> dict[Split, tuple[Task, ...]]:
        held_out: Any = self._config.eval.split
        splits: tuple[Split, ...] = ("train", held_out)
        try:
            tasks = {split: load_tasks(source, self._config, split) for split in splits}
        except TaskError as error:
            raise TaskError(self._composed.tell_origins(str(error))) from error
        split_held_out(tasks[held_out], self._config)
        return tasks

    async def _team(
        self,
        workflow: Workflow,
        source: TaskSource,
        coaches: RunCoaches,
        toolset: Toolset,
        learning: bool,
        teachers: Sequence[str],
        expected: ActionTokens,
    ) -> tuple[Team, Engine, tuple[PolicySpec, ...]]:
        config, agents = self._config, tuple(workflow.agents)
        policy_of = assign_policies(config, agents)
        proposer = [config.prompts.policy] if learning and config.prompts is not None else []
        api_policies = self._api_policies((*policy_of.values(), *proposer))
        check_prices(config, _providers(coaches.coaches, api_policies.values()))
        names = (*policies_with_weights(config, agents), *teachers)
        specs = find_starts(build_policy_specs(config, names), config, loaded=self._loaded, learning=learning)
        planned = add_expected_actions(specs, config, agents, expected)
        engine = await self._engine(planned, learning, teachers)
        team = Team(
            workflow=workflow,
            grader=source if isinstance(source, AnswerGrader) else None,
            policy_of=policy_of,
            samplers={**{spec.name: engine.sampler(spec.name) for spec in specs}, **api_policies},
            sampling={agent: _sampling(config, agent) for agent in agents},
            tools=toolset.tools,
            toolboxes=toolset.toolboxes,
            limits=toolset.limits,
            retries=toolset.retries,
            coach_of=coaches.coach_of,
            hindsight=coaches.hindsight,
            api_policies=api_policies,
            ledger=Ledger(config.coach.spend_usd),
            reference_for=frozenset(config.coach.reference_for),
            coach_timeout_s=config.coach.timeout_s,
            seed=config.seed,
        )
        return team, engine, specs

    def _trackers(self) -> tuple[tuple[str, Tracker], ...]:
        """Build the recipe's trackers and those of every run; the caller of the session starts and closes them."""
        registry = self._registry
        choices = [(chosen.use, chosen.options) for chosen in self._config.trackers]
        named = {name for name, _ in choices}
        defaults = [name for name in registry.names("trackers") if registry.offer("trackers", name).default]
        choices += [(name, None) for name in defaults if name not in named]
        return tuple((name, registry.build("trackers", name, options)) for name, options in choices)

    def _api_policies(self, names: Iterable[str]) -> Mapping[str, ApiPolicy]:
        api_policies = build_api_policies(self._config, self._registry, names)
        # Several names may have one policy, which is closed once.
        distinct = {id(policy): policy for policy in api_policies.values()}
        for policy in distinct.values():
            self._stack.push_async_callback(policy.close)
        return api_policies

    async def _engine(self, specs: Sequence[PolicySpec], learning: bool, teachers: Sequence[str]) -> Engine:
        """Build the engine and load its policies; if all are behind an API, the config's engine is not needed."""
        if not specs:
            return ApiOnlyEngine()
        engine: Engine = self._registry.build("engines", self._config.engine.use, self._config.engine.options)
        # Before it opens: what an `open` that fails half-way has started is closed, too.
        self._stack.push_async_callback(engine.close)
        _check_staleness(engine, changes_prompts=learning and self._config.prompts is not None)
        check_scored(engine, self._config, [spec for spec in specs if spec.name in teachers])
        check_dynamic_sampling(self._config, engine.straggler_share)
        if learning:
            _check_rounding(engine, self._config, specs)
        await engine.open(specs, self._config.train if learning else None, seed=self._config.seed)
        return engine


def _providers(coaches: Iterable[Coach], policies: Iterable[ApiPolicy]) -> tuple[Provider, ...]:
    of_coaches = [provider for coach in coaches for provider in coach.providers]
    of_policies = [policy.provider for policy in policies]
    return tuple(dict.fromkeys((*of_coaches, *of_policies)))


def _check_agents(config: RunConfig, agents: Sequence[str]) -> None:
    named: dict[str, Iterable[str]] = {
        "agents": config.agents,
        "coach.by_agent": config.coach.by_agent,
        "coach.reference_for": config.coach.reference_for,
        "estimator.by_agent": config.estimator.by_agent,
        "credit.counterfactual.agents": config.credit.counterfactual.agents,
        "credit.counterfactual.default_actions": config.credit.counterfactual.default_actions,
    }
    for key, names in named.items():
        for name in names:
            if name not in agents:
                close = difflib.get_close_matches(name, agents, n=1)
                hint = f" Did you mean {close[0]}?" if close else ""
                raise ConfigError(
                    f"{key}: {name!r} is no agent of the workflow {config.workflow.use}, which has "
                    f"{', '.join(map(clean_name, agents))}.{hint}"
                )


def _replace_prompts(config: RunConfig, workflow: Workflow) -> Workflow:
    prompts = {agent: section.prompt for agent, section in config.agents.items() if section.prompt is not None}
    for agent in prompts:
        if agent not in workflow.prompts:
            known = ", ".join(workflow.prompts) or "none"
            raise ConfigError(
                f"agents.{agent}.prompt: the workflow {config.workflow.use} names no prompt of it that could be "
                f"replaced; it names those of: {known}"
            )
    return workflow.with_prompts(prompts) if prompts else workflow


def _build_prompt_optimizer(config: RunConfig, registry: Registry, workflow: Workflow) -> PromptOptimizer | None:
    chosen = config.prompts
    if chosen is None:
        return None
    if not workflow.prompts:
        raise ConfigError(f"prompts.use={chosen.use}: the workflow {config.workflow.use} names no prompts to improve")
    if chosen.policy not in config.policies or config.policies[chosen.policy].kind != "api":
        key = f"policies.{chosen.policy}"
        raise ConfigError(f"prompts.policy={chosen.policy} is no policy behind an API; set {key}.kind=api {key}.use=…")
    optimizer: PromptOptimizer = registry.build("prompt_optimizers", chosen.use, chosen.options)
    return optimizer


def _check_staleness(engine: Engine, *, changes_prompts: bool) -> None:
    staleness, share = engine.max_staleness, engine.straggler_share
    if staleness < 0:
        raise ConfigError(
            f"engine.options.max_staleness is {staleness}; it is at least 0: the updates that a sampler may be behind"
        )
    if staleness and changes_prompts:
        raise ConfigError(
            f"engine.options.max_staleness={staleness}: what is collected ahead would follow prompts of before; set it "
            "to 0, or leave prompts out"
        )
    if not 0.0 <= share < 1.0:
        raise ConfigError(
            f"engine.options.straggler_share is {share:g}; it is at least 0 and below 1, the share of an iteration's "
            "rollouts that may be left to the next"
        )
    if share and not staleness:
        raise ConfigError(
            f"engine.options.straggler_share={share:g}: what is finished later is learned from later, which "
            "engine.options.max_staleness=0 forbids; set it to 1 or more"
        )
    if staleness and engine.deterministic:
        raise ConfigError(
            f"engine.options.max_staleness={staleness}: which weights sample an action then depends on how long "
            "everything takes, and engine.options.deterministic=true promises equal results; choose one of the two"
        )


def _check_rounding(engine: Engine, config: RunConfig, specs: Sequence[PolicySpec]) -> None:
    """Raise ConfigError if checkpoints round weights, and a resume would hold what they sample against the record."""
    dtype = config.checkpoint.dtype
    if engine.deterministic and dtype != "float32" and any(spec.kind == "full" for spec in specs):
        raise ConfigError(
            f"checkpoint.dtype={dtype}: a resume goes on from rounded weights, which sample other tokens than those "
            "that were recorded after the checkpoint, and engine.options.deterministic=true makes that an error; set "
            "checkpoint.dtype=float32, or engine.options.deterministic=false"
        )


def check_prices(config: RunConfig, providers: Iterable[Provider]) -> None:
    """Raise ConfigError if `coach.spend_usd` is set and the price of a provider is unknown."""
    unknown = sorted({f"{provider.name} ({provider.model})" for provider in providers if not provider.priced})
    if config.coach.spend_usd is not None and unknown:
        raise ConfigError(
            f"coach.spend_usd={config.coach.spend_usd:g} cannot be kept: the price of {', '.join(unknown)} is unknown. "
            "Set options.price={input: …, output: …} there, in US dollars per million tokens."
        )


def _sampling(config: RunConfig, agent: str) -> Sampling:
    common, own = config.sampling, config.agents.get(agent, AgentSection())
    temperature = common.temperature if own.temperature is None else own.temperature
    max_tokens = common.max_tokens if own.max_tokens is None else own.max_tokens
    return Sampling(temperature=temperature, top_p=common.top_p, top_k=common.top_k, max_tokens=max_tokens)
