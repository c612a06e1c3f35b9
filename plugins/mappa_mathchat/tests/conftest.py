"""What these tests need that the application exports to nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mappa.rollout import scenes
from mappa_core import Scene
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.prompt import PromptBuilder

BuildScenes = Callable[..., tuple[Scene, ...]]


@pytest.fixture
def live_scenes() -> BuildScenes:
    """What coaches are shown of a trajectory's actions while it is played."""
    return scenes.live_scenes


@pytest.fixture
def hindsight_scenes() -> BuildScenes:
    """What coaches are shown of a finished trajectory's actions."""
    return scenes.hindsight_scenes


@pytest.fixture
def prompt_builder() -> Callable[..., PromptBuilder]:
    """What writes the questions of a model that judges, with these options."""
    return lambda **options: PromptBuilder(LLMCoachOptions(**options))
