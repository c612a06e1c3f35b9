"""A small search of the relay team, in a registry of its own."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

import mappa_gepa
import mappa_gepa.relay.coach
import mappa_gepa.relay.team
from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_gepa.improve import improve
from mappa_gepa.options import ImproveOptions
from mappa_gepa.relay.team import DUTIES, Relay
from mappa_gepa.stored_search import StoredSearch

EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence"
sys.path.append(str(EVIDENCE))  # `desk_offers` is a team with weights that no package holds

SMALL = {"rollouts": 80, "propose": 12, "choose": 6, "report": 8, "minibatch": 2, "patience": 4}


@pytest.fixture(scope="session")
def registry():
    return load_plugins(only=[], modules={"gepa": mappa_gepa})


@pytest.fixture(scope="module")
def desk(module_site):
    """The team `desk`, installed; what a process of its own needs to find it."""
    module_site.write("desk", f"import sys; sys.path.append({str(EVIDENCE)!r})\nfrom desk_offers import *\n")
    return module_site.python_path


@pytest.fixture
def search(registry, tmp_path):
    """Search with a proposer; `settings` are of the run, `options` of the search."""

    def run(*settings, folder=None, registry=registry, composed=None, **options):
        words = (f"run.root={json.dumps(str(tmp_path))}", *settings)
        composed = composed or compose(registry, "gepa", overrides=words)
        chosen = ImproveOptions(**{"proposer": "instruction-editor", **SMALL, **options})
        return asyncio.run(improve(composed, registry, StoredSearch(options=chosen), folder=folder))

    return run


@pytest.fixture
def dotted(monkeypatch):
    """The name of the relay's writer, which would be a path of keys, and whose prompt JSON writes with a pair of
    escapes."""
    name = "writer.v1 😀"

    def renamed(values):
        return {name if agent == "writer" else agent: value for agent, value in values.items()}

    for module in (mappa_gepa.relay.team, mappa_gepa.relay.coach):
        monkeypatch.setattr(module, "DUTIES", renamed(DUTIES))
    monkeypatch.setattr(Relay, "agents", renamed(Relay.agents))
    monkeypatch.setattr(
        Relay, "prompts", {**renamed(Relay.prompts), name: f"{Relay.prompts['writer']}\n\nBe brief 😀."}
    )
    return name
