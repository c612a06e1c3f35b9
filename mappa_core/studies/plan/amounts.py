"""Expected numbers: known, known as a bound, or not known at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Amount:
    """A number that is expected, or where it is `at_most` one that it cannot exceed."""

    value: float
    at_most: bool = False

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.value + other.value, self.at_most or other.at_most)

    def __mul__(self, other: Amount | float) -> Amount:
        factor = other if isinstance(other, Amount) else Amount(other)
        return Amount(self.value * factor.value, self.at_most or factor.at_most)


NONE = Amount(0.0)


def together(amounts: Iterable[Amount | None]) -> Amount | None:
    """The sum; None where any of them is not known."""
    sum_ = NONE
    for amount in amounts:
        if amount is None:
            return None
        sum_ = sum_ + amount
    return sum_


def times(one: Amount | None, other: Amount | float | None) -> Amount | None:
    """The product; nothing of something unknown is nothing, else None where any of them is not known."""
    factor = Amount(other) if isinstance(other, float | int) else other
    if NONE in (one, factor):
        return NONE
    return None if one is None or factor is None else one * factor


def less(one: Amount | None, other: Amount | None) -> Amount | None:
    """The difference of a number and a part of it; None where either is not known."""
    if one is None or other is None:
        return None
    return Amount(one.value - other.value, one.at_most or other.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a number of trajectories comes to; None is what is not known.

    `tool_calls` are those that actions make. `sampled_tokens` and `prompt_tokens` are those of policies with weights
    here, `api_…` of those behind an API. `verdicts` are wanted; `coach_calls` are calls of providers for them, without
    those that are made again.
    """

    trajectories: Amount | None = NONE
    actions: Amount | None = NONE
    sampled_tokens: Amount | None = NONE
    prompt_tokens: Amount | None = NONE
    tool_calls: Amount | None = NONE
    verdicts: Amount | None = NONE
    coach_calls: Amount | None = NONE
    coach_prompt_tokens: Amount | None = NONE
    coach_completion_tokens: Amount | None = NONE
    coach_usd: Amount | None = NONE
    api_calls: Amount | None = NONE
    api_prompt_tokens: Amount | None = NONE
    api_completion_tokens: Amount | None = NONE
    api_usd: Amount | None = NONE

    @property
    def usd(self) -> Amount | None:
        """US dollars in all."""
        return together((self.coach_usd, self.api_usd))

    def __add__(self, other: Work) -> Work:
        return Work(**{one.name: together((getattr(self, one.name), getattr(other, one.name))) for one in fields(self)})

    def __mul__(self, factor: float) -> Work:
        return Work(**{one.name: times(getattr(self, one.name), factor) for one in fields(self)})
