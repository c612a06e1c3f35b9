"""What tests of real shapes share: the four models, and one Ray for tests of learners alone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Libraries read it when they are imported, in this process as in every actor.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import pytest

from mappa_engine.cluster.actors import RayActors


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A process has one Ray at a time: engines, which open one of their own, come before the session's."""
    items.sort(key=lambda item: "ray_actors" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def ray_actors() -> Iterator[RayActors]:
    """One Ray for all tests of learners alone. A test ends the actors that it starts."""
    one = asyncio.run(RayActors.open(cpus=8, gpus=0, store_mb=200, deadline_s=240))
    yield one
    asyncio.run(one.close())


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Write the model of a shape once, and return its folder."""
    from models import PublishedShape, write_model

    root = tmp_path_factory.mktemp("models")

    def folder(shape: PublishedShape) -> str:
        place = root / shape.name
        return str(place) if place.is_dir() else write_model(place, shape)

    return folder
