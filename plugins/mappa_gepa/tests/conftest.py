"""A small search of the relay team, in a registry of its own."""

import asyncio
import json

import pytest

import mappa_gepa
from mappa_core.commands import compose
from mappa_core.plugins import load_plugins
from mappa_gepa.improve import improve
from mappa_gepa.options import ImproveOptions
from mappa_gepa.stored_search import StoredSearch

SMALL = {"rollouts": 80, "propose": 12, "choose": 6, "report": 8, "minibatch": 2, "patience": 4}


@pytest.fixture(scope="session")
def registry():
    return load_plugins(only=[], modules={"gepa": mappa_gepa})


@pytest.fixture
def search(registry, tmp_path):
    """Search with a proposer; `settings` are of the run, `options` of the search."""

    def run(*settings, folder=None, registry=registry, composed=None, **options):
        words = (f"run.root={json.dumps(str(tmp_path))}", *settings)
        composed = composed or compose(registry, "gepa", overrides=words)
        chosen = ImproveOptions(**{"proposer": "instruction-editor", **SMALL, **options})
        return asyncio.run(improve(composed, registry, StoredSearch(options=chosen), folder=folder))

    return run
