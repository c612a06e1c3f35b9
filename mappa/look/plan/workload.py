"""Expected amounts: known, known as an upper bound, or unknown (None)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class PlannedAmount:
    """An expected number; with `at_most` it is an upper bound."""

    value: float
    at_most: bool = False

    def __add__(self, other: PlannedAmount) -> PlannedAmount:
        return PlannedAmount(self.value + other.value, self.at_most or other.at_most)

    def __mul__(self, other: PlannedAmount | float) -> PlannedAmount:
        factor = other if isinstance(other, PlannedAmount) else PlannedAmount(other)
        return PlannedAmount(self.value * factor.value, self.at_most or factor.at_most)


ZERO = PlannedAmount(0.0)


def sum_amounts(amounts: Iterable[PlannedAmount | None]) -> PlannedAmount | None:
    """The sum; None if any amount is unknown."""
    sum_ = ZERO
    for amount in amounts:
        if amount is None:
            return None
        sum_ = sum_ + amount
    return sum_


def multiply_amounts(one: PlannedAmount | None, other: PlannedAmount | float | None) -> PlannedAmount | None:
    """The product; zero if either is zero, even if the other is unknown, else None if either is unknown."""
    factor = PlannedAmount(other) if isinstance(other, float | int) else other
    if ZERO in (one, factor):
        return ZERO
    return None if one is None or factor is None else one * factor


def subtract_amounts(one: PlannedAmount | None, other: PlannedAmount | None) -> PlannedAmount | None:
    """The difference of an amount and a part of it; None if either is unknown."""
    if one is None or other is None:
        return None
    return PlannedAmount(one.value - other.value, one.at_most or other.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of a number of trajectories; None is unknown.

    `tool_calls` are made by actions. `sampled_tokens` and `prompt_tokens` belong to policies with local weights,
    `api_…` to those behind an API. `verdicts` are requested; `coach_calls` are the calls of providers for them, without
    retries.
    """

    trajectories: PlannedAmount | None = ZERO
    actions: PlannedAmount | None = ZERO
    sampled_tokens: PlannedAmount | None = ZERO
    prompt_tokens: PlannedAmount | None = ZERO
    tool_calls: PlannedAmount | None = ZERO
    verdicts: PlannedAmount | None = ZERO
    coach_calls: PlannedAmount | None = ZERO
    coach_prompt_tokens: PlannedAmount | None = ZERO
    coach_completion_tokens: PlannedAmount | None = ZERO
    coach_usd: PlannedAmount | None = ZERO
    api_calls: PlannedAmount | None = ZERO
    api_prompt_tokens: PlannedAmount | None = ZERO
    api_completion_tokens: PlannedAmount | None = ZERO
    api_usd: PlannedAmount | None = ZERO

    @property
    def usd(self) -> PlannedAmount | None:
        """Total cost in US dollars."""
        return sum_amounts((self.coach_usd, self.api_usd))

    def __add__(self, other: Workload) -> Workload:
        return Workload(
            **{one.name: sum_amounts((getattr(self, one.name), getattr(other, one.name))) for one in fields(self)}
        )

    def __mul__(self, factor: float) -> Workload:
        return Workload(**{one.name: multiply_amounts(getattr(self, one.name), factor) for one in fields(self)})
