"""What these tests need that the application exports to nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mappa.rollout import scenes
from mappa_core import Scene

BuildScenes = Callable[..., tuple[Scene, ...]]


@pytest.fixture
def live_scenes() -> BuildScenes:
    """What coaches are shown of a trajectory's actions while it is played."""
    return scenes.live_scenes


@pytest.fixture
def hindsight_scenes() -> BuildScenes:
    """What coaches are shown of a finished trajectory's actions."""
    return scenes.hindsight_scenes
