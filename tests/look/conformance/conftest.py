"""What the exact proofs need that core exports to nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mappa_core import Estimator
from mappa_core.credit import by_agent


@pytest.fixture
def combine_estimators() -> Callable[..., Estimator]:
    """One estimator of several, by agent."""
    return by_agent.combine_estimators
