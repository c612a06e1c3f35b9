"""The coaches of a run: whether the attempts of their calls fit into the time of a verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from mappa.session.coaches import build_coaches
from mappa_core import ConfigError, Use
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.config.schema import CoachSection

LIMITS = LLMCoachOptions().limits
WORKFLOW = SimpleNamespace(agents={"solver": None}, metric="correct")


def test_attempts_that_do_not_fit_into_a_verdict_are_refused() -> None:
    section = CoachSection(use="gemini", options=SimpleNamespace(limits=LIMITS), timeout_s=120.0)
    with pytest.raises(
        ConfigError, match=r"limits\.attempts=4 times limits\.timeout_s=60 does not fit; raise it to 240"
    ):
        build_coaches(SimpleNamespace(coach=section), None, WORKFLOW)


def test_attempts_of_a_member_have_to_fit_as_those_of_a_coach() -> None:
    @dataclass
    class Options:
        members: list[Use]

    slow = Use(use="gemini", options=SimpleNamespace(limits=replace(LIMITS, timeout_s=600)))
    section = CoachSection(use="ensemble", options=Options([Use(use="rules"), slow]))
    with pytest.raises(ConfigError, match=r"of gemini, limits\.attempts=4 times limits\.timeout_s=600 does not fit"):
        build_coaches(SimpleNamespace(coach=section), None, WORKFLOW)
