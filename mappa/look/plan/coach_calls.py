"""Providers that the coaches of a recipe call, as far as they are known without an API key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mappa_core import Coach, Completion, ConfigError, Message, Role, Scene, Step, Task, Use
from mappa_core.calls.options import Price, charged_price
from mappa_core.coaching.investigation.options import InvestigatorOptions
from mappa_core.coaching.investigation.prompt import max_question_characters
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.prompt import PromptBuilder
from mappa_core.coaching.token_budget import estimate_tokens
from mappa_core.config.schema import CoachSection, RunConfig
from mappa_core.plugins import Registry
from mappa_core.records import Phase

CoachUse = Use | CoachSection


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachProvider:
    """A provider that a coach calls: its name, its model in the recipe, and its price (None: unknown).

    `prompt_tokens` bounds one prompt by agent, with our own estimate of tokens; `completion_tokens` bounds a reply.
    `by_trajectory`: one call judges all actions of a trajectory, or up to `max_calls`, whatever their evidence.
    """

    name: str
    model: str
    price: Price | None
    prompt_tokens: Mapping[str, float]
    completion_tokens: int
    by_trajectory: bool
    max_calls: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachAssignment:
    """The agents that one coach judges in one phase, and the providers it calls; `asks` is None if they are unknown."""

    coach: str
    phase: Phase
    agents: tuple[str, ...]
    asks: tuple[CoachProvider, ...] | None


async def assign_coaches(
    config: RunConfig, registry: Registry, roles: Mapping[str, Role]
) -> tuple[CoachAssignment, ...]:
    """List every coach of a recipe once per phase, with its agents and providers.

    Raises:
        ConfigError: a budget or a rubric is invalid.
    """
    section, chosen = config.coach, list[tuple[CoachUse, Phase, list[str]]]()
    for agent in roles if section.reward.get("live") else ():
        use = section.by_agent.get(agent, section)
        same = next((agents for other, _, agents in chosen if _is_same_coach(other, use)), None)
        if same is None:
            chosen.append((use, "live", [agent]))
        else:
            same.append(agent)
    if section.hindsight is not None and section.reward.get("after"):
        chosen.append((section.hindsight, "after", list(roles)))
    return tuple(
        [
            CoachAssignment(
                coach=use.use,
                phase=phase,
                agents=tuple(agents),
                asks=await _coach_providers(use, config, registry, roles),
            )
            for use, phase, agents in chosen
        ]
    )


def _is_same_coach(one: CoachUse, other: CoachUse) -> bool:
    return (one.use, one.options) == (other.use, other.options)


async def _coach_providers(
    use: CoachUse, config: RunConfig, registry: Registry, roles: Mapping[str, Role]
) -> tuple[CoachProvider, ...] | None:
    """The providers behind a coach: its transport's, those of all parts of a composite coach, or none. Any other
    coach is built to see whether it has providers; if building it requires an API key, they are unknown."""
    if use.use in registry.names("transports"):
        return (await _transport_provider(use, config, roles),)
    if isinstance(use.options, InvestigatorOptions):
        model = await _coach_providers(use.options.model, config, registry, roles)
        return None if model is None else tuple(_investigating(provider, use.options, roles) for provider in model)
    if registry.offer("coaches", use.use).composite:
        members = [await _coach_providers(part, config, registry, roles) for part in _member_uses(use.options)]
        return None if None in members else tuple(one for providers in members for one in providers or ())
    try:
        coach: Coach = registry.build("coaches", use.use, use.options)
    except ConfigError:
        return None
    try:
        return None if coach.providers else ()
    finally:
        await coach.close()


def _member_uses(options: Any) -> Iterator[Use]:
    for one in fields(options):
        value = getattr(options, one.name)
        yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, Use))


async def _transport_provider(use: CoachUse, config: RunConfig, roles: Mapping[str, Role]) -> CoachProvider:
    options: Any = use.options
    questions = PromptBuilder(options)
    shown = config.coach.reference_for
    instructions = {agent: await _instruction_tokens(questions, agent, roles, truth=agent in shown) for agent in roles}
    return CoachProvider(
        name=use.use,
        model=str(getattr(options, "model", "")),
        price=charged_price(options),
        prompt_tokens={agent: tokens + options.budget for agent, tokens in instructions.items()},
        completion_tokens=options.max_tokens,
        by_trajectory=_by_trajectory(options),
    )


def _investigating(provider: CoachProvider, options: InvestigatorOptions, roles: Mapping[str, Role]) -> CoachProvider:
    """The provider behind an investigator: each question is bounded by its characters, as no text has more tokens."""
    tokens = dict.fromkeys(roles, float(max_question_characters(options)))
    return replace(provider, prompt_tokens=tokens, by_trajectory=True, max_calls=options.calls)


def _by_trajectory(options: LLMCoachOptions) -> bool:
    return options.batch == "trajectory"


async def _instruction_tokens(questions: PromptBuilder, agent: str, roles: Mapping[str, Role], *, truth: bool) -> float:
    """Tokens of the prompt before the evidence: judging instructions, team and rubric."""
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
    question = await questions.build(Scene(task=task, role=roles[agent], step=step, team=roles))
    return estimate_tokens(question.messages[0].content)
