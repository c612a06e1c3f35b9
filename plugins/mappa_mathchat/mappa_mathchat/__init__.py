"""MathChat for Mappa: the team, its tasks, an offline coach and recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mappa_core import Offer, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from mappa_core import Coach, TaskSource, Workflow


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    from mappa_mathchat.workflow import MathChat, MathChatOptions

    yield Offer("mathchat", MathChat, MathChatOptions)


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    from mappa_mathchat.stories import Stories
    from mappa_mathchat.word_problems import WordOptions, WordProblems

    yield Offer("words", WordProblems, WordOptions)
    yield Offer("stories", Stories, WordOptions)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    from mappa_mathchat.rule_coach import RuleCoach, RuleOptions

    yield Offer("mathchat-rules", RuleCoach, RuleOptions)


@hookimpl
def mappa_recipes() -> Mapping[str, Traversable]:
    from mappa_core.workflow import find_recipes

    return find_recipes(__name__)
