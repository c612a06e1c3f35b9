"""What tests of rollouts need that core exports to nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mappa_core import Failure
from mappa_core.credit import counterfactual
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
