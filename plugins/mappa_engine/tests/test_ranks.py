"""One algorithm on any number of ranks: ranks as threads that add up their gradients give what one rank gives."""

import copy
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mappa_core import Advantages
from mappa_core.config.schema import SupervisedSection
from mappa_core.engine import Demonstrations, TrainSection, select_rows
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.learning.scoring import merge_scores, score_policy
from mappa_engine.learning.update import PolicyUpdate
from mappa_engine.losses import PPOLoss
from mappa_engine.options import PPOOptions

TRAIN = TrainSection(iterations=10, learning_rate=0.1, minibatch_rows=4, supervised=SupervisedSection(weight=0.3))
LOSS = PPOLoss(PPOOptions(kl="k3", kl_coef=0.1))
PACKED = BatchLayout("packed", 64)


class Meeting:
    """Where ranks hand each other what they have."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._held = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=60)

    def everyones(self, rank: int, mine):
        self._held[rank] = mine
        self._barrier.wait()
        found = list(self._held)
        self._barrier.wait()
        return found


class RankLearner:
    """Plain torch SGD on a copy of the weights; gradients are kept to be looked at."""

    name = "solver"
    device = torch.device("cpu")
    norm_dtype = torch.float32

    def __init__(self, start: LogprobModel, meeting: Meeting, rank: int) -> None:
        self.rank, self.ranks, self.steps = rank, meeting.ranks, 0
        self.gradients, self.passes, self._meeting = [], [], meeting
        self.scorer = copy.deepcopy(start)
        self._whole: dict[str, torch.Tensor] = {}

    def forward(self, batch, *, entropy=False):
        return self.scorer(batch, entropy=entropy)

    def backward(self, loss, *, last):
        self.passes.append(last)
        loss.backward()

    def grad_norm(self):
        own = {name: weight.grad for name, weight in self.scorer.weights().items() if weight.grad is not None}
        all_ranks = self._meeting.everyones(self.rank, own)
        self._whole = {name: sum(each_rank[name] for each_rank in all_ranks) for name in own}
        return torch.nn.utils.get_total_norm([tensor.to(self.norm_dtype) for tensor in self._whole.values()]).item()

    @torch.no_grad()
    def step(self, learning_rate):
        self.gradients.append(self._whole)
        weights = self.scorer.weights()
        for name, gradient in self._whole.items():
            weights[name] -= learning_rate * gradient
        self.steps += 1
        self.zero_grad()

    def zero_grad(self):
        self.scorer.zero_grad()

    def all_reduce(self, sums):
        total = defaultdict(float)
        for sums_of_rank in self._meeting.everyones(self.rank, dict(sums)):
            for name, value in sums_of_rank.items():
                total[name] += value
        return dict(total)


def together(ranks: int, work):
    """What `work(rank, meeting)` gives on each rank."""
    meeting = Meeting(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(lambda rank: work(rank, meeting), range(ranks)))


def scores(start, experience, ranks, layout):
    def work(rank, meeting):
        learner = RankLearner(start, meeting, rank)
        reference = LogprobModel(learner.scorer.model)
        return score_policy(
            "solver", learner.forward, reference, experience, layout=layout, device=learner.device, rank=rank,
            ranks=ranks,
        )  # fmt: skip

    return merge_scores(experience, together(ranks, work))


def updates(start, experience, given, ranks, layout, train=TRAIN, loss=LOSS, *, skips_idle=False):
    def work(rank, meeting):
        learner = RankLearner(start, meeting, rank)
        update = PolicyUpdate(learner, experience, given, loss, train, layout=layout, skips_idle=skips_idle)
        return learner, update.run(0.1, seed=3)

    return together(ranks, work)


@pytest.fixture(scope="module")
def start(qwen3) -> LogprobModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(qwen3).eval()
    return LogprobModel(model, torch.nn.Linear(model.config.hidden_size, 1))


@pytest.fixture(scope="module")
def experience(start, kit):
    rows = kit.rows(9) + kit.rows(3, seed=1, temperature=0.7, weight=0.5) + kit.rows(2, seed=2, weight=0.0)
    found = scores(start, kit.experience(rows), 1, BatchLayout("padded", 100))
    noise = np.random.default_rng(5).normal(scale=0.3, size=len(found.tokens)).astype(np.float32)
    drawn = np.random.default_rng(6).integers(3, 259, 40).astype(np.int32)
    corrected = Demonstrations(row=np.array([0, 4, 4], np.int32), tokens=drawn, offsets=np.array([0, 25, 28, 40]))
    return replace(found, logprobs=found.old_logprobs + noise, demonstrations=corrected)


@pytest.fixture(scope="module")
def given(experience):
    drawn = np.random.default_rng(0).normal(size=(2, len(experience.tokens))).astype(np.float32)
    return Advantages(advantages=drawn[0], value_targets=drawn[1])


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("layout", [PACKED, BatchLayout("padded", 100)], ids=str)
def test_scores_do_not_depend_on_ranks(start, experience, ranks, layout):
    found = scores(start, experience, ranks, layout)
    for column in ("old_logprobs", "ref_logprobs", "values"):
        np.testing.assert_allclose(getattr(found, column), getattr(experience, column), atol=1e-5)


def assert_the_steps_of_one(start, experience, given, ranks, layout, train):
    ((one, metrics),) = updates(start, experience, given, 1, BatchLayout("padded", 10_000), train)
    found = updates(start, experience, given, ranks, layout, train)
    assert len({len(learner.passes) for learner, _ in found}) == 1
    for learner, own in found:
        assert learner.steps == one.steps == 3
        assert own == found[0][1]
        assert own == pytest.approx(metrics, rel=1e-4, abs=1e-6)
        scale = max(gradient.abs().max().item() for gradient in one.gradients[0].values())
        for name, expected in one.gradients[0].items():
            gap = (learner.gradients[0][name] - expected).abs().max().item()
            assert gap <= 1e-6 * scale, name
        for name, weight in one.scorer.weights().items():
            np.testing.assert_allclose(learner.scorer.weights()[name].detach(), weight.detach(), atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("layout", [PACKED, BatchLayout("padded", 100)], ids=str)
def test_steps_do_not_depend_on_ranks(start, experience, given, ranks, layout):
    assert_the_steps_of_one(start, experience, given, ranks, layout, TRAIN)


@pytest.mark.parametrize("mean", [{"mean": "sequence"}, {"mean": "fixed", "mean_length": 7}], ids=["sequence", "fixed"])
def test_steps_with_every_mean_and_term_do_not_depend_on_ranks(start, experience, given, mean):
    train = replace(TRAIN, entropy_coef=0.3, value_clip=0.05, **mean)
    assert_the_steps_of_one(start, experience, given, 2, PACKED, train)


def test_last_micro_batch_of_a_step_is_marked(start, experience, given):
    for learner, _ in updates(start, experience, given, 2, PACKED):
        assert learner.passes.count(True) == 3
        assert learner.passes[-1]


def test_a_rank_without_rows_changes_nothing(start, kit):
    experience = scores(start, kit.experience(kit.rows(1)), 1, PACKED)
    given = Advantages(advantages=np.ones(len(experience.tokens), np.float32))
    ((one, metrics),) = updates(start, experience, given, 1, PACKED)
    for learner, own in updates(start, experience, given, 3, PACKED):
        assert own == pytest.approx(metrics)
        for name, expected in one.gradients[0].items():
            assert torch.equal(learner.gradients[0][name], expected), name


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("busy", [(), (0,), (0, 3, 7, 8)], ids=len)
def test_idle_rows_are_left_out_alike_by_all_ranks(start, experience, given, ranks, busy):
    """Steps whose rows are all idle among them, and ranks to which no row is left."""
    is_busy = np.isin(experience.row_of_token, busy)
    paid = Advantages(advantages=np.where(is_busy, given.advantages, 0.0).astype(np.float32))
    rows = int((experience.weight > 0).sum())
    loss = PPOLoss(PPOOptions())
    ((one, _),) = updates(start, experience, paid, 1, PACKED, loss=loss)
    found = updates(start, experience, paid, ranks, PACKED, loss=loss, skips_idle=True)
    assert len({len(learner.passes) for learner, _ in found}) == 1
    for learner, metrics in found:
        assert metrics == found[0][1]
        assert (metrics["steps"], metrics["rows"], metrics["idle_rows"]) == (3.0, rows, rows - len(busy))
        for own, expected in zip(learner.gradients, one.gradients, strict=True):
            for name, gradient in expected.items():
                torch.testing.assert_close(own[name], gradient, atol=1e-6, rtol=1e-4)


def test_non_finite_rank_skips_the_step_on_all(start, experience, given):
    train = replace(TRAIN, minibatch_rows=None)
    broken = replace(given, advantages=given.advantages.copy())
    broken.advantages[0] = np.inf
    before = RankLearner(start, Meeting(1), 0).scorer.weights()
    for learner, metrics in updates(start, experience, broken, 2, PACKED, train):
        assert (metrics["skipped"], metrics["steps"], learner.steps) == (1.0, 0.0, 0)
        assert all(torch.equal(weight, before[name]) for name, weight in learner.scorer.weights().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_too_large_to_square_is_skipped(start, experience, given, monkeypatch, dtype):
    monkeypatch.setattr(RankLearner, "norm_dtype", dtype)
    broken = replace(given, advantages=given.advantages * np.float32(1e25))
    for learner, metrics in updates(start, experience, broken, 2, PACKED, replace(TRAIN, minibatch_rows=None)):
        assert (metrics["skipped"], metrics["steps"], learner.steps) == (1.0, 0.0, 0)


def test_shares_that_do_not_add_up_are_refused(start, experience):
    learner = RankLearner(start, Meeting(1), 0)
    half = score_policy(
        "solver", learner.forward, learner.forward, experience, layout=PACKED, device=learner.device, rank=0, ranks=2
    )
    with pytest.raises(ValueError, match="every sampled token once"):
        merge_scores(experience, [half])


def test_merging_no_scores(experience):
    assert len(merge_scores(select_rows(experience, np.empty(0, np.int64)), []).old_logprobs) == 0
