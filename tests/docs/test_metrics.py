"""The page on metrics is what the code says, and the code says what runs measure."""

import re
from pathlib import Path

import pytest

from mappa_core.training.metrics import METRICS_PAGE, SECTIONS, find_metric, render_metrics_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated():
    again = "write it anew: Path(PAGE).write_text(page()), of mappa_core.training.metrics"
    assert (ROOT / METRICS_PAGE).read_text("utf-8") == render_metrics_page(), again


def test_no_name_is_there_twice_and_none_reads_like_another():
    names = [metric.name for section in SECTIONS.values() for metric in section]
    assert len(names) == len(set(names))
    for name in names:
        # Names of a run's own are in lower case here, as capitals are what stands for them.
        assert find_metric(re.sub("[A-Z]+", lambda word: word[0].lower(), name)).name == name


@pytest.mark.parametrize(
    "name, meant",
    [
        ("stratum/fractions/easy/figure/f1", "stratum/STRATUM/figure/FIGURE"),
        ("drift/live/coder/task/excel/gap_low", "drift/PHASE/AGENT/STRATIFIER/STRATUM/gap_low"),
        ("coach/agent/solver/usd", "coach/agent/AGENT/usd"),
        ("policy/solver/clip_share_low", "policy/POLICY/clip_share_low"),
        ("eval/accuracy_high", "eval/accuracy_high"),
    ],
)
def test_a_name_of_a_run_is_told_apart(name, meant):
    assert find_metric(name).name == meant


@pytest.mark.parametrize("name", ["acuracy", "policy/solver/losss", "eval/", "seconds/", "accuracy/x"])
def test_what_is_not_in_the_set_is_nothing(name):
    assert find_metric(name) is None
