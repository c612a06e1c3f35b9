"""A short run of the team that doubles numbers, to be judged again."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mappa.cli.main import cli
from mappa.sessions import Run
from mappa.store.team_record import TEAM_EVENT, TeamRecord
from mappa.store.writer import Store
from mappa.testing import load_plugins
from mappa_core import Registry


@pytest.fixture(scope="module")
def registry(module_site) -> Registry:
    module_site.install("acme_doubles")
    return load_plugins(only=("look", "doubles", "engine", "sandbox"))


@pytest.fixture(scope="module")
def trained(registry, tmp_path_factory) -> Path:
    """Three iterations of eight rollouts, one of which in all ends early."""
    return train(registry, tmp_path_factory.mktemp("runs"))


def train(registry: Registry, root: Path, *settings: str) -> Path:
    return Run.from_recipe("doubles/tiny", f"run.root={root}", *settings, registry=registry).train().folder


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of the run that a test may write to."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def make_run(registry, tmp_path):
    """Train with other settings."""
    return lambda *settings: train(registry, tmp_path / "runs", *settings)


@pytest.fixture
def invoke() -> Callable[[Sequence[str]], Result]:
    """The command line, with what it prints in the order in which it is printed."""
    return lambda words: CliRunner().invoke(cli, words)


@pytest.fixture
def record_metric() -> Callable[[Store, str], None]:
    """Record in a run's store the metric of its team."""
    return lambda store, metric: store.record_event(
        TEAM_EVENT, **dataclasses.asdict(TeamRecord(agents={}, metric=metric))
    )


@pytest.fixture
def store_class() -> type[Store]:
    """What writes a run's records, for tests that let a write fail."""
    return Store
