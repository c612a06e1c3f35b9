"""What these tests need that core and the application export to nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mappa.rollout import scenes
from mappa_core import Bench, Message, Scene, Tool, ToolCall, ToolLimits
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.prompt import PromptBuilder
from mappa_core.tools.parse_calls import parse_calls
from mappa_core.tools.scratch import ScratchRunner

BuildScenes = Callable[..., tuple[Scene, ...]]


@pytest.fixture
def live_scenes() -> BuildScenes:
    """What coaches are shown of a trajectory's actions while it is played."""
    return scenes.live_scenes


@pytest.fixture
def hindsight_scenes() -> BuildScenes:
    """What coaches are shown of a finished trajectory's actions."""
    return scenes.hindsight_scenes


@pytest.fixture(scope="session")
def build_bench() -> Callable[[Tool, ToolLimits, Path], Bench]:
    """A run's bench: the tool `python`, its limits, and the archive of files."""

    def build(tool: Tool, limits: ToolLimits, archive: Path) -> Bench:
        return ScratchRunner({"python": tool}, {"python": limits}, {"python": 0}, wait_s=0, archive=archive)

    return build


@pytest.fixture
def programs_in() -> Callable[[str], tuple[ToolCall, ...]]:
    """The calls of `python` that are found in an agent's text."""
    return lambda text: tuple(parse_calls(Message(role="assistant", content=text), ["python"]))


@pytest.fixture
def prompt_builder() -> Callable[..., PromptBuilder]:
    """What writes the questions of a model that judges, with these options."""
    return lambda **options: PromptBuilder(LLMCoachOptions(**options))
