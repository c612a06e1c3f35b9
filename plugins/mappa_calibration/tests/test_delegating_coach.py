"""Coaches that wrap others pass on every method of the protocol, also one that is added to it tomorrow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from mappa_calibration.corrected_coach import BiasCorrectedCoach
from mappa_calibration.ensemble import Ensemble, Member
from mappa_calibration.options import BiasOptions
from mappa_core import Coach, DelegatingCoach, Scene, Verdict
from mappa_core.transport import Provider

JUDGEMENTS = {"score", "review"}
"""What a wrapper is there for; it asks the wrapped coach as it likes."""


class Recording(Coach):
    """Records what it is called for."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def score(self, scene: Scene) -> Verdict:
        return Verdict.scored(5, "fine")


def record_every_call(name: str) -> Any:
    """A member that notes its name in `heard` and returns what every wrapper can work with."""
    original = inspect.getattr_static(Coach, name)
    if isinstance(original, property):
        values = {
            "by_trajectory": True,
            "providers": (Provider(name="p", model="m", host="h", priced=True),),
            "fitted_on": {"a hash of a question"},
        }
        return property(lambda self: self.heard.append(name) or values.get(name))
    if inspect.iscoroutinefunction(original):

        async def later(self: Recording, *_: Any) -> None:
            self.heard.append(name)

        return later
    return lambda self, *_: self.heard.append(name) or (None if name == "learn" else {})


def public_members() -> set[str]:
    return {name for name in dir(Coach) if not name.startswith("_")} - JUDGEMENTS


WRAPPERS: dict[str, Callable[[Coach], Coach]] = {
    "ensemble": lambda coach: Ensemble([Member(name="one", coach=coach), Member(name="two", coach=Recording())]),
    "escalation": lambda coach: Ensemble(
        [Member(name="one", coach=Recording())], escalate_to=Member(name="last", coach=coach)
    ),
    "bias_corrected": lambda coach: BiasCorrectedCoach(coach, BiasOptions()),
}


async def lost_members(wrap: Callable[[Coach], Coach]) -> set[str]:
    """The public members of the protocol that do not reach the coach that `wrap` wraps."""
    wrapped_type = type("Everything", (Recording,), {name: record_every_call(name) for name in public_members()})
    lost = set()
    for name in public_members():
        coach = wrapped_type()
        wrapper = wrap(coach)
        state = wrapper.state_dict()
        coach.heard.clear()
        member = inspect.getattr_static(type(wrapper), name)
        if isinstance(member, property):
            getattr(wrapper, name)
        else:
            count = len(inspect.signature(member).parameters) - 1
            result = getattr(wrapper, name)(*[state if name == "load_state_dict" else []] * count)
            if inspect.isawaitable(result):
                await result
        if name not in coach.heard:
            lost.add(name)
    return lost


@pytest.mark.parametrize("name", WRAPPERS)
async def test_a_wrapper_passes_on_every_member_of_the_protocol(name: str) -> None:
    # An ensemble asks `escalate_to` one by one, so this coach does not decide when the members are asked.
    expected = {"by_trajectory"} if name == "escalation" else set()
    assert await lost_members(WRAPPERS[name]) == expected


@pytest.mark.parametrize("name", WRAPPERS)
async def test_a_member_that_is_added_to_the_protocol_and_forgotten_in_the_base_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Coach, "warm_up", lambda self: None, raising=False)
    assert "warm_up" in await lost_members(WRAPPERS[name])
    monkeypatch.setattr(
        DelegatingCoach, "warm_up", lambda self: [c.warm_up() for c in self._coaches.values()], raising=False
    )
    assert "warm_up" not in await lost_members(WRAPPERS[name])


def test_the_base_defines_every_member_itself() -> None:
    assert public_members() <= vars(DelegatingCoach).keys()


def test_every_wrapper_is_held_to_this() -> None:
    # The investigator of core passes on too; it asks the coach that it wraps in its own words.
    wrappers = {coach for coach in DelegatingCoach.__subclasses__() if coach.__module__.startswith("mappa_cal")}
    assert wrappers == {Ensemble, BiasCorrectedCoach}
