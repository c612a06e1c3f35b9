"""Whom the coaches of a recipe ask, as far as it can be told without a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from mappa_core.calls.options import Price
from mappa_core.coaching.budget import estimate
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.question import Questions
from mappa_core.config.schema import CoachSection, RunConfig, Use
from mappa_core.errors import ConfigError
from mappa_core.plugins import Registry
from mappa_core.protocols import Coach
from mappa_core.records import Completion, Message, Phase, Role, Scene, Step, Task

Chosen = Use | CoachSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A provider that a coach asks: its name, its model as the recipe says, and its price (None: unknown).

    `prompt_tokens` bounds one question by agent, by our own estimate of tokens; `completion_tokens` a reply.
    `by_trajectory`: one question for all actions.
    """

    name: str
    model: str
    price: Price | None
    prompt_tokens: Mapping[str, float]
    completion_tokens: int
    by_trajectory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Whose actions one coach judges in one phase, and whom it asks; `asks` is None where that is not known."""

    coach: str
    phase: Phase
    agents: tuple[str, ...]
    asks: tuple[Asked, ...] | None


async def judged(config: RunConfig, registry: Registry, roles: Mapping[str, Role]) -> tuple[Judged, ...]:
    """Every coach of a recipe once per phase.

    Raises:
        ConfigError: a budget or a rubric that cannot be used.
    """
    section, chosen = config.coach, list[tuple[Chosen, Phase, list[str]]]()
    for agent in roles if section.reward.get("live") else ():
        use = section.by_agent.get(agent, section)
        same = next((agents for other, _, agents in chosen if _same(other, use)), None)
        if same is None:
            chosen.append((use, "live", [agent]))
        else:
            same.append(agent)
    if section.hindsight is not None and section.reward.get("after"):
        chosen.append((section.hindsight, "after", list(roles)))
    return tuple(
        [
            Judged(coach=use.use, phase=phase, agents=tuple(agents), asks=await _asked(use, config, registry, roles))
            for use, phase, agents in chosen
        ]
    )


def _same(one: Chosen, other: Chosen) -> bool:
    return (one.use, one.options) == (other.use, other.options)


async def _asked(
    use: Chosen, config: RunConfig, registry: Registry, roles: Mapping[str, Role]
) -> tuple[Asked, ...] | None:
    """The providers behind a coach: those of a transport, of every part of a coach that is made of others, or none. A
    coach of another make is built and asked whether it has any; where it wants a key for that, it is not known."""
    if use.use in registry.names("transports"):
        return (await _provider(use, config, roles),)
    if registry.offer("coaches", use.use).composite:
        found = [await _asked(part, config, registry, roles) for part in _parts(use.options)]
        return None if None in found else tuple(one for asked in found for one in asked or ())
    try:
        coach: Coach = registry.build("coaches", use.use, use.options)
    except ConfigError:
        return None
    try:
        return None if coach.providers else ()
    finally:
        await coach.close()


def _parts(options: Any) -> Iterator[Use]:
    for one in fields(options):
        value = getattr(options, one.name)
        yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, Use))


async def _provider(use: Chosen, config: RunConfig, roles: Mapping[str, Role]) -> Asked:
    options: Any = use.options
    questions = Questions(options)
    shown = config.coach.reference_for
    instructions = {agent: await _instructions(questions, agent, roles, truth=agent in shown) for agent in roles}
    return Asked(
        name=use.use,
        model=str(getattr(options, "model", "")),
        price=options.price,
        prompt_tokens={agent: tokens + options.budget for agent, tokens in instructions.items()},
        completion_tokens=options.max_tokens,
        by_trajectory=_by_trajectory(options),
    )


def _by_trajectory(options: LLMCoachOptions) -> bool:
    return options.batch == "trajectory"


async def _instructions(questions: Questions, agent: str, roles: Mapping[str, Role], *, truth: bool) -> float:
    """Tokens of what stands before the evidence: how to judge, the team and the rubric."""
    empty = np.zeros(0, dtype=np.int32)
    step = Step(
        id="",
        agent=agent,
        turn=0,
        position=0,
        policy=agent,
        messages=(),
        reply=Message(role="assistant", content=""),
        completion=Completion(text="", prompt_tokens=empty, tokens=empty, logprobs=None, finish="stop"),
    )
    task = Task(id="", prompt="", reference="" if truth else None)
    question = await questions.about(Scene(task=task, role=roles[agent], step=step, team=roles))
    return estimate(question.messages[0].content)
