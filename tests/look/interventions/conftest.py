"""The team that doubles numbers with coaches that know, or think they know, who is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from mappa.cli import main
from mappa.testing import load_plugins
from mappa_core import Registry

COACHES = '''
from mappa_core import NOBODY, Coach, NoOptions, Verdict


class Auditor(Coach):
    """Computes again what each agent should have said."""

    def __init__(self, options): pass

    async def score(self, scene):
        right = str(2 * int(scene.task.prompt)) if scene.step.agent == "doubler" else scene.earlier[-1].reply.content
        if scene.step.reply.content == right:
            return Verdict.scored(10, "right", blame=NOBODY)
        return Verdict.scored(2, f"it is {right}", blame=scene.step.agent, correction=right)


class Grump(Coach):
    """Always blames the checker, and would have it say 1."""

    def __init__(self, options): pass

    async def score(self, scene):
        if scene.step.agent == "doubler":
            return Verdict.scored(10, "fine", blame=NOBODY)
        return Verdict.scored(1, "never right", blame="checker", correction="1")


class Mild(Coach):
    """Blames nobody."""

    def __init__(self, options): pass

    async def score(self, scene):
        return Verdict.scored(10, "fine", blame=NOBODY)


@hookimpl
def mappa_coaches():
    yield Offer("auditor", Auditor, NoOptions)
    yield Offer("grump", Grump, NoOptions)
    yield Offer("mild", Mild, NoOptions)
'''


@pytest.fixture(scope="module")
def registry(module_site) -> Registry:
    module_site.install("acme_doubles")
    module_site.write("auditing", COACHES)
    return load_plugins(only=("look", "doubles", "auditing"))


@pytest.fixture(scope="module")
def trained(registry, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    assert main(["train", "--plugin", "doubles", f"run.root={root}", "run.name=run", "--quiet"]) == 0
    return root / "run"
