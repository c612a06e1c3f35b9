"""Builds, opens and closes everything that a run works with."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from mappa.config.compose import ComposedConfig, iter_choices
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
from mappa.session.policies import (
    assign_policies,
    build_api_policies,
    build_policy_specs,
    check_estimators,
    check_scored,
    check_temperatures,
    find_teachers,
    policies_with_weights,
)
from mappa.session.toolset import Toolset, open_tools
from mappa_core.calls.api_policy import ApiPolicy
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.codec import check_record
from mappa_core.config.layers import DEFAULT_ORIGIN
from mappa_core.config.schema import AgentSection, RunConfig
from mappa_core.credit.build_experience import ExperienceBuilder
from mappa_core.errors import ConfigError, InputError, TaskError
from mappa_core.plugins import Registry
from mappa_core.protocols import (
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
from mappa_core.redaction import keep_environment
from mappa_core.tools import task_files


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Session:
    """The opened objects of one run. `team` has no coaches if the session was opened without a coach."""

    config: RunConfig
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

    @property
    def deterministic(self) -> bool:
        """Whether sampling is reproducible bit for bit."""
        return self.engine.deterministic and self.team.api_policies.keys().isdisjoint(self.team.policy_of.values())

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Providers that coaches and policies call: what agents see and write is sent to them."""
        return _providers(self.coaches, self.team.api_policies.values())

    @property
    def trained_policies(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.policies if spec.trained)

    def tasks(self, split: Split, min_count: int = 1) -> tuple[Task, ...]:
        """Load the tasks of a split. Raises TaskError if there are fewer than `min_count`, two with the same id, or one
        with a field of the wrong type or a file that cannot be used."""
        tasks, where = tuple(self.source.load(split) or ()), f"tasks.use={self.config.tasks.use}"
        if len(tasks) < min_count:
            raise TaskError(f"{where}: {len(tasks)} {split} tasks, at least {min_count} needed")
        seen: set[str] = set()
        for task in tasks:
            try:
                task_files.resolve_task_files(check_record(Task, task, "load", TaskError).files)
            except TaskError as error:
                raise TaskError(f"{where}: the task {getattr(task, 'id', task)!r}: {error}") from error
            if task.id in seen:
                raise TaskError(f"{where}: the id {task.id!r} occurs twice among {split} tasks")
            seen.add(task.id)
        return tasks

    def held_out(self) -> HeldOutTasks:
        """Tasks of evaluations, the same every time. Raises as `tasks` and `split_held_out`."""
        split: Any = self.config.eval.split
        return split_held_out(self.tasks(split)[: self.config.eval.problems], self.config)

    def with_prompts(self, prompts: Mapping[str, str]) -> Session:
        """The same session with other prompts of some agents."""
        workflow = self.workflow.with_prompts(prompts)
        return replace(self, workflow=workflow, team=replace(self.team, workflow=workflow))

    def team_for(self, split: Split) -> Team:
        """The team for `split`: evaluation has its own temperature and, unless `eval.coach`, no coaches."""
        if split == "train":
            return self.team
        section = self.config.eval
        sampling = {agent: replace(one, temperature=section.temperature) for agent, one in self.team.sampling.items()}
        team = replace(self.team, sampling=sampling)
        return team if section.coach else replace(team, coach_of={}, hindsight=None)


@asynccontextmanager
async def open_session(
    composed: ComposedConfig, registry: Registry, *, learning: bool, coach: bool, fresh: bool = True
) -> AsyncIterator[Session]:
    """Build everything that `composed` names, open the tools and the engine, and close all of it at the end.

    Args:
        learning: whether policies will be updated (an engine needs more memory for it).
        coach: whether to build coaches; False for an evaluation without one, which needs no keys.
        fresh: whether policies start from `policies.*.from`; False if a checkpoint of the run will be loaded.

    Raises ConfigError, PluginError or ModelError before anything is written.
    """
    keep_environment()
    async with AsyncExitStack() as stack:
        builder = _SessionBuilder(composed.config, registry, stack, fresh=fresh)
        yield await builder.session(learning=learning, coach=coach)


def find_problems(composed: ComposedConfig, registry: Registry) -> list[str]:
    """Try every offer of a config, its tasks and its engine's plan apart; return each reason why no run can start."""
    config, problems = composed.config, list[str]()
    # A tool is tried when it is opened; a loss imports the libraries of its engine.
    for key, kind, choice in (one for one in iter_choices(config) if one[1] not in ("tools", "losses")):
        try:
            offer = registry.build(kind, str(choice.use), choice.options)
            if kind == "tasks":
                problems += [f"tasks: no {one} tasks" for one in ("train", config.eval.split) if not offer.load(one)]
            elif kind == "engines" and hasattr(offer, "plan"):
                agents = tuple(registry.build("workflows", config.workflow.use, config.workflow.options).agents)
                teachers = find_teachers(config, agents, build_estimator(config, registry))
                if specs := build_policy_specs(config, (*policies_with_weights(config, agents), *teachers)):
                    plan = offer.plan(specs, config.train, rows=config.sampling.concurrency, machines=())
                    problems += plan.details.get("problems", ())
                    check_scored(offer, config, [spec for spec in specs if spec.name in teachers])
        except InputError as error:
            problems.append(f"{key}: {error}")
    return problems


class _SessionBuilder:
    """Builds one session and registers its objects on `stack` for closing."""

    def __init__(self, config: RunConfig, registry: Registry, stack: AsyncExitStack, *, fresh: bool) -> None:
        self._config = config
        self._fresh = fresh
        self._registry = registry
        self._stack = stack

    async def session(self, *, learning: bool, coach: bool) -> Session:
        config, registry = self._config, self._registry
        workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
        self._stack.push_async_callback(workflow.close)
        _check_agents(config, tuple(workflow.agents))
        workflow = _replace_prompts(config, workflow)
        if learning:
            check_estimators(config, registry, tuple(workflow.agents))
            check_temperatures(config, tuple(workflow.agents))
        source = registry.build("tasks", config.tasks.use, config.tasks.options)
        coaches = build_coaches(config, registry, workflow) if coach else RunCoaches()
        for one in coaches.coaches:
            self._stack.push_async_callback(one.close)
        experience_builder = build_experience_builder(config, registry, workflow)
        check_difference_shaper(config, experience_builder.shapers)
        default_actions = resolve_default_actions(config, workflow)
        trackers, estimator = self._trackers(), build_estimator(config, registry)
        optimizer = _build_prompt_optimizer(config, registry, workflow) if learning else None
        has_loss = learning and policies_with_weights(config, tuple(workflow.agents))
        loss = registry.build("losses", config.loss.use, config.loss.options) if has_loss else None
        toolset = await open_tools(config, registry, self._stack)
        teachers = find_teachers(config, tuple(workflow.agents), estimator) if learning else ()
        team, engine, specs = await self._team(workflow, coaches, toolset, learning, teachers)
        return Session(
            config=config, workflow=workflow, source=source, engine=engine, team=team, sandboxes=toolset.sandboxes,
            policies=specs, coaches=coaches.coaches, experience_builder=experience_builder,
            default_actions=default_actions, estimator=estimator, prompt_optimizer=optimizer, loss=loss,
            trackers=trackers,
        )  # fmt: skip

    async def _team(
        self, workflow: Workflow, coaches: RunCoaches, toolset: Toolset, learning: bool, teachers: Sequence[str]
    ) -> tuple[Team, Engine, tuple[PolicySpec, ...]]:
        config, agents = self._config, tuple(workflow.agents)
        policy_of = assign_policies(config, agents)
        proposer = [config.prompts.policy] if learning and config.prompts is not None else []
        api_policies = self._api_policies((*policy_of.values(), *proposer))
        check_prices(config, _providers(coaches.coaches, api_policies.values()))
        specs = build_policy_specs(config, (*policies_with_weights(config, agents), *teachers), fresh=self._fresh)
        engine = await self._engine(specs, learning, teachers)
        team = Team(
            workflow=workflow, policy_of=policy_of, tools=toolset.tools, toolboxes=toolset.toolboxes,
            samplers={**{spec.name: engine.sampler(spec.name) for spec in specs}, **api_policies},
            sampling={agent: _sampling(config, agent) for agent in agents},
            limits=toolset.limits, retries=toolset.retries,
            coach_of=coaches.coach_of, hindsight=coaches.hindsight, api_policies=api_policies,
            ledger=Ledger(config.coach.spend_usd), reference_for=frozenset(config.coach.reference_for),
            coach_timeout_s=config.coach.timeout_s, seed=config.seed,
        )  # fmt: skip
        return team, engine, specs

    def _trackers(self) -> tuple[tuple[str, Tracker], ...]:
        """Build the recipe's trackers and those of every run; the caller of the session starts and closes them."""
        registry = self._registry
        choices = [(one.use, one.options) for one in self._config.trackers]
        named = {name for name, _ in choices}
        defaults = [name for name in registry.names("trackers") if registry.offer("trackers", name).default]
        choices += [(name, None) for name in defaults if name not in named]
        return tuple((name, registry.build("trackers", name, options)) for name, options in choices)

    def _api_policies(self, names: Iterable[str]) -> Mapping[str, ApiPolicy]:
        api_policies = build_api_policies(self._config, self._registry, names)
        for policy in {id(policy): policy for policy in api_policies.values()}.values():
            self._stack.push_async_callback(policy.close)
        return api_policies

    async def _engine(self, specs: Sequence[PolicySpec], learning: bool, teachers: Sequence[str]) -> Engine:
        """Build the engine and load its policies; if all are behind an API, the config's engine is not needed."""
        if not specs:
            return ApiOnlyEngine()
        engine: Engine = self._registry.build("engines", self._config.engine.use, self._config.engine.options)
        self._stack.push_async_callback(engine.close)
        _check_staleness(engine, changes_prompts=learning and self._config.prompts is not None)
        check_scored(engine, self._config, [spec for spec in specs if spec.name in teachers])
        check_dynamic_sampling(self._config, engine.straggler_share)
        await engine.open(specs, self._config.train if learning else None, seed=self._config.seed)
        return engine


def _providers(coaches: Iterable[Coach], policies: Iterable[ApiPolicy]) -> tuple[Provider, ...]:
    providers = (*(provider for coach in coaches for provider in coach.providers), *(one.provider for one in policies))
    return tuple(dict.fromkeys(providers))


def _check_agents(config: RunConfig, agents: Sequence[str]) -> None:
    named: dict[str, Iterable[str]] = {
        "agents": config.agents,
        "coach.by_agent": config.coach.by_agent,
        "coach.reference_for": config.coach.reference_for,
        "estimator.by_agent": config.estimator.by_agent,
        "credit.counterfactual.agents": config.credit.counterfactual.agents,
        "credit.counterfactual.default_actions": config.credit.counterfactual.default_actions,
    }
    for key, name in ((key, name) for key, names in named.items() for name in names if name not in agents):
        close = difflib.get_close_matches(name, agents, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        known = f"the workflow {config.workflow.use}, which has {', '.join(agents)}"
        raise ConfigError(f"{key}: {name!r} is no agent of {known}.{hint}")


def _replace_prompts(config: RunConfig, workflow: Workflow) -> Workflow:
    prompts = {agent: section.prompt for agent, section in config.agents.items() if section.prompt is not None}
    for agent in prompts:
        if agent not in workflow.prompts:
            known = ", ".join(workflow.prompts) or "none"
            raise ConfigError(f"agents.{agent}.prompt: {config.workflow.use} names no prompt of it; it names: {known}")
    return workflow.with_prompts(prompts) if prompts else workflow


def overridden_settings(composed: ComposedConfig, agents: Sequence[str], loaded: Iterable[str]) -> Iterator[str]:
    """Describe settings that do not have the effect that they seem to have: those of the user that no agent follows, as
    each has its own; policies that nothing uses, neither an agent nor one that is `loaded`; advantages normalised over
    a policy that agents share; shapers before one that replaces every reward."""
    policy_of, optimizer = assign_policies(composed.config, agents), composed.config.prompts
    used = {"default", *policy_of.values(), *loaded, *([optimizer.policy] if optimizer else [])}
    for unused in sorted(composed.config.policies.keys() - used):
        yield f"policies.{unused} has no effect: agents play by {', '.join(dict.fromkeys(policy_of.values()))}"
    shared = [one for one, count in Counter(policy_of.values()).items() if count > 1]
    if shared and getattr(composed.config.estimator.options, "normalize", None) == "policy":
        yield (
            f"estimator.options.normalize=policy: agents share the policy {shared[0]}, so that a coach that likes one "
            "of them moves the advantages of the others; normalize=agent keeps them apart"
        )
    before = list[str]()
    for one in composed.config.shapers:
        if before and (one.use == "outcome" or (one.use == "difference" and one.options.process_weight == 0)):
            what = f"{', '.join(before)} before it"
            yield f"shapers: {one.use} replaces every reward, so that {what} has no effect; put it behind {one.use}"
        before.append(str(one.use))
    for place, _, choice in iter_choices(composed.config):
        if getattr(choice.options, "batch_api", None) is not None:
            yield f"{place}.options.batch_api: each of {composed.config.train.iterations} iterations waits for batches"
    for name in ("max_tokens", "temperature"):
        given, own = (composed.origins.get(f"{key}.{name}", "") for key in ("sampling", f"agents.{agents[0]}"))
        values = [getattr(composed.config.agents.get(agent), name, None) for agent in agents]
        if not given.startswith((DEFAULT_ORIGIN, "recipe ")) and None not in values:
            yield f"sampling.{name} ({given}) has no effect: every agent has an agents.AGENT.{name} of its own ({own})"


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
        raise ConfigError(f"engine.options.max_staleness is {staleness}; it is at least 0")
    if staleness and changes_prompts:
        raise ConfigError(
            f"engine.options.max_staleness={staleness}: what is collected ahead would follow prompts of before; set it "
            "to 0, or leave prompts out"
        )
    if not 0.0 <= share < 1.0:
        raise ConfigError(f"engine.options.straggler_share is {share:g}; it is at least 0 and below 1")
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
