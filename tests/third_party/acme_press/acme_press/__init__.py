"""A complete third-party plugin: workflow, tasks, tool, transport, credit and tracker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from mappa_core import Offer, hookimpl

if TYPE_CHECKING:
    from mappa_core import Estimator, Shaper, TaskSource, Tool, Tracker, Workflow
    from mappa_core.transport import Transport


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    from acme_press.team import Words, WordsOptions

    yield Offer("press_words", Words, WordsOptions)


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    from acme_press.team import Press

    yield Offer("press", Press)


@hookimpl
def mappa_tools() -> Iterable[Offer[Tool]]:
    from acme_press.glossary import Glossary

    yield Offer("press_glossary", Glossary)


@hookimpl
def mappa_transports() -> Iterable[Offer[Transport]]:
    from acme_press import wire

    yield Offer("press_wire", wire.build, wire.Options)


@hookimpl
def mappa_shapers() -> Iterable[Offer[Shaper]]:
    from acme_press.credit import Brief, BriefOptions

    yield Offer("press_brief", Brief, BriefOptions)


@hookimpl
def mappa_estimators() -> Iterable[Offer[Estimator]]:
    from acme_press.credit import Remembered

    yield Offer("press_remembered", Remembered)


@hookimpl
def mappa_trackers() -> Iterable[Offer[Tracker]]:
    from acme_press.diary import Diary, DiaryOptions

    yield Offer("press_diary", Diary, DiaryOptions)


@hookimpl
def mappa_recipes() -> Mapping[str, Traversable]:
    return {"tiny": files(__name__) / "recipes" / "tiny.yaml"}
