"""What tests of rollouts need that core exports to nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mappa.training import dynamic_sampling
from mappa_core import Failure, Shaper
from mappa_core.credit import counterfactual
from mappa_core.credit.build_experience import ExperienceBuilder
from mappa_core.records import Counterfactual


@pytest.fixture
def counterfactuals() -> Callable[..., tuple[Counterfactual, ...]]:
    """Rollouts in place of the first action: each with its outcome, or with the kind of its failure."""

    def build(*outcomes: float | str) -> tuple[Counterfactual, ...]:
        return tuple(
            Counterfactual(position=0, number=number, error=Failure(kind=outcome, message=""))
            if isinstance(outcome, str)
            else Counterfactual(position=0, number=number, outcome={"correct": outcome})
            for number, outcome in enumerate(outcomes)
        )

    return build


@pytest.fixture
def counterfactual_credit():
    """What an action changed of the outcome."""
    return counterfactual.counterfactual_credit


@pytest.fixture
def tasks_with_spread():
    """The tasks that dynamic sampling keeps."""
    return dynamic_sampling.tasks_with_spread


@pytest.fixture
def experience_builder() -> Callable[..., ExperienceBuilder]:
    """What makes the experience of trajectories of one policy, with each verdict as its reward if no shaper says
    other."""

    def build(
        overflow: str, *shapers: Shaper, agents: Sequence[str] = ("writer",), **reward: float
    ) -> ExperienceBuilder:
        return ExperienceBuilder(
            reward=reward or {"live": 1.0},
            shapers=shapers,
            policies=dict.fromkeys(agents, "scripted"),
            trained=frozenset({"scripted"}),
            metric="correct",
            overflow=overflow,
        )

    return build
