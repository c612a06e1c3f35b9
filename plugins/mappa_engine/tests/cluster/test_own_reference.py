"""The reference of a policy that starts from another run, on a learner's rank: as in the engine `local`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mappa_core import Advantages
from mappa_core.engine import Lora, PolicySpec, TrainSection
from mappa_engine.checkpoint import REFERENCE_FOLDER
from mappa_engine.cluster.learners.process_group import Rendezvous
from mappa_engine.cluster.learners.rank import LearnerConfig, LearnerRank
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.learning.scoring import merge_scores
from mappa_engine.losses import PPOLoss
from mappa_engine.options import PlacedOptions, PPOOptions

TRAIN = TrainSection(iterations=10, learning_rate=1e-2)
NAMES = ("solver", "coder")


def specs_of(kind: str, model: str, folder=None) -> list[PolicySpec]:
    """A policy that starts from `folder`, if there is one, and one that starts from the model."""
    lora = Lora(rank=4, alpha=8.0) if kind == "lora" else None
    given = [{} if folder is None else {"start": folder, "reference": folder}, {}]
    return [
        PolicySpec(name=name, model=model, kind=kind, lora=lora, **own) for name, own in zip(NAMES, given, strict=True)
    ]


@pytest.fixture
def rank(monkeypatch):
    """Open ranks without Ray and DeepSpeed, which are not installed here: learners of whole models only score."""
    opened: list[LearnerRank] = []

    def new_full_learner(self, spec):
        scorer = LogprobModel(self._bases[spec.model].trainable_copy(), None)
        self._load_start_weights(spec, scorer.weights())
        return SimpleNamespace(
            forward=scorer, move=lambda presence: None, steps=0,
            masters=lambda: iter(scorer.weights().items()), moments=lambda: iter(()),
        )  # fmt: skip

    def init_process_group(rendezvous, store, **_) -> None:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

    monkeypatch.setattr(LearnerRank, "_new_full_learner", new_full_learner)
    monkeypatch.setattr("mappa_engine.cluster.learners.rank.init_process_group", init_process_group)

    def open_rank(specs) -> LearnerRank:
        options = PlacedOptions(packed_tokens=256, call_s=60.0)
        config = LearnerConfig(specs=tuple(specs), train=TRAIN, options=options, dtype="float32", gpu=False, seed=3)
        opened.append(LearnerRank(config, rank=0, ranks=1))
        opened[-1].open(Rendezvous(host="", port=0))
        return opened[-1]

    yield open_rank
    for each in opened:
        each.close()


@pytest.mark.parametrize("kind", ["full", "lora"])
async def test_references_are_what_policies_start_from(qwen3, opened, kit, tmp_path, rank, kind):
    local = await opened(qwen3, train=TRAIN, policies=specs_of(kind, qwen3))
    rows = kit.experience([*kit.rows(4, policy="solver"), *kit.rows(4, 1, policy="coder")], NAMES)
    scored = await local.score(rows)
    drawn = np.random.default_rng(0).normal(size=len(rows.tokens)).astype(np.float32)
    await local.update(scored, Advantages(advantages=drawn), PPOLoss(PPOOptions()), 0.0)
    await local.save(tmp_path / "first")
    specs = specs_of(kind, qwen3, tmp_path / "first" / "solver")
    expected = await (await opened(qwen3, train=TRAIN, policies=specs)).score(rows)
    first = rank(specs)
    scored = merge_scores(rows, first.score(rows))
    own = scored.policy[scored.row_of_token] == 0
    assert scored.ref_logprobs[own].tobytes() == scored.old_logprobs[own].tobytes()
    assert abs(scored.ref_logprobs - expected.ref_logprobs).max() < 1e-4
    first.save(tmp_path / "second", dict.fromkeys(NAMES, 0))
    assert not (tmp_path / "second" / "coder" / REFERENCE_FOLDER).exists()
    first.close()
    kept = replace(specs[0], start=None, reference=tmp_path / "second" / "solver" / REFERENCE_FOLDER)
    again = merge_scores(rows, rank([kept, specs[1]]).score(rows))
    assert again.ref_logprobs.tobytes() == scored.ref_logprobs.tobytes()
