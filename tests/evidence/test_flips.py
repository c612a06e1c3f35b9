"""Flips of failed plays, before training and after it: shares, differences, what was claimed, and what is stored."""

import json
from pathlib import Path

import msgspec
import pytest
import stored
from flips import STAGES, Stage, row, summarize

from mappa.look.blame_proof import Proof

RESULT = Path(__file__).parents[2] / "docs" / "evidence" / "results" / "flips.json"


def proof(task, blamed, random, resampled, corrected=True):
    return Proof(
        trajectory=task,
        task=task,
        agent="solver",
        position=0,
        reason="",
        corrected=corrected,
        random_agent="verifier",
        random_position=2,
        flips={"blamed": blamed, "random": random, "resampled": resampled},
    )


def test_shares_are_of_known_flips_and_differences_of_pairs():
    found = summarize(
        "after",
        [proof("1", True, False, False), proof("2", True, True, False), proof("3", False, None, True, corrected=False)],
    )
    assert (found.proofs, found.corrected) == (3, 2)
    assert {arm: share.mean for arm, share in found.shares.items()} == pytest.approx(
        {"blamed": 2 / 3, "random": 1 / 2, "resampled": 1 / 3}
    )
    assert found.corrected_share.mean == 1.0
    assert {arm: gain.mean for arm, gain in found.beyond.items()} == pytest.approx({"random": 0.5, "resampled": 1 / 3})
    assert len(row(found)) == 10


@pytest.mark.parametrize(
    ("flips", "standing"),
    [
        ((True, False, False), "held"),
        ((True, True, False), "not held"),
        ((False, False, False), "not held"),
        ((True, None, None), "open"),
    ],
)
def test_a_claim_is_held_where_half_flip_and_more_than_otherwise(flips, standing):
    assert summarize("after", [proof(str(number), *flips) for number in range(20)]).standing == standing


@pytest.mark.parametrize("stage", STAGES)
def test_the_stored_figures_are_those_of_the_stored_proofs(stage):
    found = json.loads(RESULT.read_text())
    proofs = [
        one
        for by_seed in stored.unpack(found["proofs"][stage]).values()
        for one in msgspec.convert(by_seed, list[Proof])
    ]
    (figures,) = (one for one in found["stages"] if one["stage"] == stage)
    assert summarize(stage, proofs) == msgspec.convert(figures, Stage)
