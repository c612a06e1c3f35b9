"""A resolved config and a registry made into objects: the one place that builds, opens and closes."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from mappa_core.config.compose import Composed
from mappa_core.config.schema import PolicySection, RunConfig, ToolSection
from mappa_core.credit.by_agent import combine
from mappa_core.errors import ConfigError, TaskError
from mappa_core.plugins import Registry
from mappa_core.protocols import (
    Engine,
    Estimator,
    Loss,
    PolicySpec,
    Shaper,
    Split,
    TaskSource,
    Tool,
    Tracker,
    Workflow,
)
from mappa_core.records import Sampling, Task, ToolLimits
from mappa_core.rollout.team import Judge, Team


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Session:
    """The objects of one run, opened. `team` has no judges where the session was opened without a coach."""

    config: RunConfig
    workflow: Workflow
    source: TaskSource
    engine: Engine
    team: Team
    policies: tuple[PolicySpec, ...]
    shapers: tuple[Shaper, ...]
    estimator: Estimator
    loss: Loss
    trackers: tuple[Tracker, ...]

    @property
    def trained(self) -> frozenset[str]:
        """Names of the policies that learn."""
        return frozenset(spec.name for spec in self.policies if spec.kind == "full")

    def tasks(self, split: Split, at_least: int = 1) -> tuple[Task, ...]:
        """The tasks of a split.

        Raises:
            TaskError: fewer than `at_least`, or two of the same id.
        """
        tasks = tuple(self.source.load(split))
        if len(tasks) < at_least:
            raise TaskError(
                f"tasks.use={self.config.tasks.use}: {len(tasks)} {split} tasks, at least {at_least} needed"
            )
        seen: set[str] = set()
        for task in tasks:
            if task.id in seen:
                raise TaskError(
                    f"tasks.use={self.config.tasks.use}: the id {task.id!r} occurs twice among {split} tasks"
                )
            seen.add(task.id)
        return tasks

    def evaluation_tasks(self) -> tuple[Task, ...]:
        """The tasks that an evaluation plays, the same ones every time."""
        split: Any = self.config.eval.split
        return self.tasks(split)[: self.config.eval.problems]

    def team_for(self, split: Split) -> Team:
        """The team as it plays `split`: evaluation has its own temperature and, unless `eval.coach`, no judges."""
        if split == "train":
            return self.team
        sampling = {
            agent: replace(chosen, temperature=self.config.eval.temperature)
            for agent, chosen in self.team.sampling.items()
        }
        judges = self.team.judges if self.config.eval.coach else {}
        return replace(self.team, sampling=sampling, judges=judges)


@asynccontextmanager
async def open_session(
    composed: Composed, registry: Registry, *, learning: bool, coach: bool
) -> AsyncIterator[Session]:
    """Build everything that `composed` names, open the engine, and close all of it at the end.

    Args:
        learning: whether policies will be updated (an engine needs more memory for it).
        coach: whether to build coaches; False for an evaluation without one, which needs no keys.

    Raises:
        ConfigError, PluginError, ModelError: before anything is written.
    """
    config = composed.config
    async with AsyncExitStack() as stack:
        workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
        stack.push_async_callback(workflow.close)
        agents = tuple(workflow.agents)
        _check_agents(config, agents)
        source = registry.build("tasks", config.tasks.use, config.tasks.options)
        judges = _build_judges(config, registry, agents) if coach else {}
        for judged_by in {id(judge.coach): judge.coach for judge in judges.values()}.values():
            stack.push_async_callback(judged_by.close)
        tools = {name: _build_tool(registry, section) for name, section in config.tools.items()}
        for tool in tools.values():
            stack.push_async_callback(tool.close)
        shapers = tuple(registry.build("shapers", one.use, one.options) for one in config.shapers)
        trackers = tuple(registry.build("trackers", one.use, one.options) for one in config.trackers)
        for tracker in trackers:
            stack.callback(tracker.close)
        estimator = _build_estimator(config, registry)
        loss = registry.build("losses", config.loss.use, config.loss.options)
        policy_of, specs = _policies(config, agents)
        engine: Engine = registry.build("engines", config.engine.use, config.engine.options)
        stack.push_async_callback(engine.close)
        await engine.open(specs, config.train if learning else None, seed=config.seed)
        team = Team(
            workflow=workflow,
            policy_of=policy_of,
            samplers={spec.name: engine.sampler(spec.name) for spec in specs},
            sampling={agent: _sampling(config, agent) for agent in agents},
            tools=tools,
            limits={name: _limits(section) for name, section in config.tools.items()},
            judges=judges,
            reference_for=frozenset(config.coach.reference_for),
            coach_timeout_s=config.coach.timeout_s,
            seed=config.seed,
        )
        yield Session(
            config=config,
            workflow=workflow,
            source=source,
            engine=engine,
            team=team,
            policies=specs,
            shapers=shapers,
            estimator=estimator,
            loss=loss,
            trackers=trackers,
        )


def _check_agents(config: RunConfig, agents: Sequence[str]) -> None:
    named: dict[str, Iterable[str]] = {
        "agents": config.agents,
        "coach.by_agent": config.coach.by_agent,
        "coach.reference_for": config.coach.reference_for,
        "estimator.by_agent": config.estimator.by_agent,
    }
    for key, names in named.items():
        for name in names:
            if name not in agents:
                close = difflib.get_close_matches(name, agents, n=1)
                hint = f" Did you mean {close[0]}?" if close else ""
                raise ConfigError(
                    f"{key}: {name!r} is no agent of the workflow {config.workflow.use}, "
                    f"which has {', '.join(agents)}.{hint}"
                )


def _build_judges(config: RunConfig, registry: Registry, agents: Sequence[str]) -> Mapping[str, Judge]:
    common = Judge(name=config.coach.use, coach=registry.build("coaches", config.coach.use, config.coach.options))
    own = {
        agent: Judge(name=chosen.use, coach=registry.build("coaches", chosen.use, chosen.options))
        for agent, chosen in config.coach.by_agent.items()
    }
    return {agent: own.get(agent, common) for agent in agents}


def _build_tool(registry: Registry, section: ToolSection) -> Tool:
    tool: Tool = registry.build("tools", section.use, section.options)
    return tool


def _build_estimator(config: RunConfig, registry: Registry) -> Estimator:
    default = registry.build("estimators", config.estimator.use, config.estimator.options)
    by_agent = {
        agent: registry.build("estimators", chosen.use, chosen.options)
        for agent, chosen in config.estimator.by_agent.items()
    }
    return combine(default, by_agent) if by_agent else default


def _policies(config: RunConfig, agents: Sequence[str]) -> tuple[Mapping[str, str], tuple[PolicySpec, ...]]:
    policy_of = {}
    for agent in agents:
        section = config.agents.get(agent)
        policy_of[agent] = section.policy if section is not None and section.policy is not None else agent
    names = tuple(dict.fromkeys(policy_of.values()))
    return policy_of, tuple(_policy_spec(name, config.policies) for name in names)


def _policy_spec(name: str, sections: Mapping[str, PolicySection]) -> PolicySpec:
    section = sections.get(name, sections.get("default"))
    if section is None:
        raise ConfigError(f"policies.{name}: not set, and there is no policies.default; set policies.default.model=…")
    kind: Any = section.kind
    return PolicySpec(
        name=name,
        model=section.model,
        kind=kind,
        value_head=section.value_head,
        template_kwargs=section.template_kwargs,
    )


def _sampling(config: RunConfig, agent: str) -> Sampling:
    common, own = config.sampling, config.agents.get(agent)
    temperature, max_tokens = common.temperature, common.max_tokens
    if own is not None and own.temperature is not None:
        temperature = own.temperature
    if own is not None and own.max_tokens is not None:
        max_tokens = own.max_tokens
    return Sampling(temperature=temperature, top_p=common.top_p, top_k=common.top_k, max_tokens=max_tokens)


def _limits(section: ToolSection) -> ToolLimits:
    limits: Any = section.limits
    return ToolLimits(
        wall_s=limits.wall_s,
        cpu_s=limits.cpu_s,
        memory_bytes=limits.memory_mb << 20,
        file_bytes=limits.file_mb << 20,
        output_bytes=limits.output_kb << 10,
    )
