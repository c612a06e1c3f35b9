"""What tests of the looking rooms need of a room that shows it to nobody."""

from __future__ import annotations

import pytest

from mappa.evaluation import statistics


@pytest.fixture
def gain_half_widths():
    """How far the interval of a gain reaches to both sides, by its problems."""
    return statistics.gain_half_widths
