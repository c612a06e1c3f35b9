"""The supervised term: its gradient written out, its own mean, and everything that must not change it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mappa_core import Advantages
from mappa_core.config.schema import SupervisedSection
from mappa_core.credit.ragged import lengths_to_offsets
from mappa_core.engine import CorrectionSection, Demonstrations, TrainSection, select_rows
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.learning.scoring import merge_scores, score_policy
from mappa_engine.learning.update import PolicyUpdate
from mappa_engine.losses import PPOLoss
from mappa_engine.options import PPOOptions

TRAIN = TrainSection(
    iterations=10,
    learning_rate=0.1,
    grad_clip=1e9,
    correction=CorrectionSection(kind="none"),
    supervised=SupervisedSection(weight=0.7),
)
LOSS = PPOLoss(PPOOptions())
LAYOUTS = [
    BatchLayout("padded", 10_000),
    BatchLayout("padded", 60),
    BatchLayout("packed", 10_000),
    BatchLayout("packed", 64),
]


def demonstrations(of: dict[int, list[list[int]]]) -> Demonstrations:
    given = [(row, tokens) for row in sorted(of) for tokens in of[row]]
    return Demonstrations(
        row=np.array([row for row, _ in given], np.int32),
        tokens=np.array([token for _, tokens in given for token in tokens], np.int32),
        offsets=lengths_to_offsets(np.array([len(tokens) for _, tokens in given], np.int64)),
    )


class Plain:
    """A learner of one rank that keeps its gradients and moves nothing."""

    name, device, rank, ranks, steps = "solver", torch.device("cpu"), 0, 1, 0

    def __init__(self, scorer: LogprobModel) -> None:
        self.scorer, self.gradients = scorer, []
        scorer.zero_grad()

    def forward(self, batch, **asked):
        return self.scorer(batch, **asked)

    def backward(self, loss, *, last):
        loss.backward()

    def grad_norm(self):
        return torch.nn.utils.get_total_norm([weight.grad for weight in self.scorer.weights().values()]).item()

    def step(self, learning_rate):
        self.gradients.append({name: weight.grad.clone() for name, weight in self.scorer.weights().items()})
        self.zero_grad()

    def zero_grad(self):
        self.scorer.zero_grad()

    def all_reduce(self, sums):
        return dict(sums)


@pytest.fixture(scope="module")
def scorer(qwen3) -> LogprobModel:
    return LogprobModel(AutoModelForCausalLM.from_pretrained(qwen3).eval())


@pytest.fixture(scope="module")
def experience(scorer, kit):
    """Six live rows, of which one was sampled at another temperature, and one without a reward; three are corrected."""
    rows = kit.rows(5) + kit.rows(1, seed=1, temperature=0.7) + kit.rows(1, seed=2, weight=0.0)
    found = kit.experience(rows)
    shares = score_policy("solver", scorer, scorer, found, layout=LAYOUTS[0], device=Plain.device)
    given = demonstrations({0: [[5, 9, 200, 2]], 3: [[7, 2], [100, 101, 102, 2]], 5: [[30, 31, 2]]})
    return replace(merge_scores(found, [shares]), demonstrations=given)


@pytest.fixture(scope="module")
def given(experience):
    drawn = np.random.default_rng(0).normal(size=len(experience.tokens)).astype(np.float32)
    return Advantages(advantages=drawn)


def updated(scorer, experience, given, *, train=TRAIN, layout=LAYOUTS[0]):
    learner = Plain(scorer)
    metrics = PolicyUpdate(learner, experience, given, LOSS, train, layout=layout).run(0.1, seed=3)
    return learner.gradients, metrics


def surprise(folder: str, experience, chosen) -> tuple[dict[str, torch.Tensor], float]:
    """The gradient of the mean of -log p over the tokens of some demonstrations, by the model's own forward, one by
    one; and the mean."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    total, count, given = torch.zeros(()), 0, experience.demonstrations
    for index in chosen:
        row = given.row[index]
        prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
        tokens = given.tokens[given.offsets[index] : given.offsets[index + 1]]
        ids = torch.from_numpy(np.concatenate([prompt, tokens]).astype(np.int64))[None]
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, len(prompt) - 1 : -1], -1)
        total = total - logprobs.gather(1, ids[0, len(prompt) :, None]).sum()
        count += len(tokens)
    (total / count).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, (total / count).item()


def assert_same(found, expected, tolerance=1e-5):
    scale = max(tensor.abs().max().item() for tensor in expected.values())
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max().item() <= tolerance * scale, name


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_supervised_gradient_matches_plain_torch(qwen3, scorer, experience, given, layout):
    (found,), metrics = updated(scorer, experience, given, layout=layout)
    (policy,), alone = updated(scorer, replace(experience, demonstrations=None), given)
    term, mean = surprise(qwen3, experience, range(4))
    assert_same(found, {name: policy[name] + 0.7 * gradient for name, gradient in term.items()})
    assert metrics["supervised_loss"] == pytest.approx(mean, rel=1e-5)
    assert metrics["supervised_tokens"] == 13
    assert metrics["loss"] == pytest.approx(alone["loss"] + 0.7 * mean, rel=1e-5)
    assert metrics["tokens"] == alone["tokens"]


def test_supervised_mean_is_over_the_steps_tokens(qwen3, scorer, experience, given):
    train = replace(TRAIN, minibatch_rows=3)
    found, metrics = updated(scorer, experience, given, train=train)
    without, _ = updated(scorer, replace(experience, demonstrations=None), given, train=train)
    order = np.random.default_rng([3, 1, *b"solver"]).permutation(6)
    steps = [np.isin(experience.demonstrations.row, order[start : start + 3]).nonzero()[0] for start in (0, 3)]
    assert sorted(len(step) for step in steps) != [0, 4]
    for both, policy, chosen in zip(found, without, steps, strict=True):
        term, _ = surprise(qwen3, experience, chosen)
        assert_same(both, {name: policy[name] + 0.7 * gradient for name, gradient in term.items()})
    assert metrics["supervised_tokens"] == 13


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_without_corrections_updates_are_bit_equal(scorer, experience, given, weight):
    train = replace(TRAIN, supervised=SupervisedSection(weight=weight))
    known = experience if weight == 0.0 else replace(experience, demonstrations=demonstrations({}))
    expected = updated(
        scorer, replace(experience, demonstrations=None), given, train=replace(TRAIN, supervised=SupervisedSection())
    )
    (found,), metrics = updated(scorer, known, given, train=train)
    assert metrics == expected[1]
    assert all(torch.equal(tensor, expected[0][0][name]) for name, tensor in found.items())


def test_a_correction_of_a_row_without_reward_changes_nothing(scorer, experience, given):
    more = demonstrations({0: [[5, 9, 200, 2]], 3: [[7, 2], [100, 101, 102, 2]], 5: [[30, 31, 2]], 6: [[9, 9, 2]]})
    (one,), metrics = updated(scorer, experience, given)
    (other,), others = updated(scorer, replace(experience, demonstrations=more), given)
    assert metrics == others
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_non_finite_supervised_loss_is_skipped(scorer, experience, given):
    train = replace(TRAIN, supervised=SupervisedSection(weight=1e39))
    gradients, metrics = updated(scorer, experience, given, train=train)
    assert (gradients, metrics["skipped"]) == ([], 1.0)


def test_corrections_become_likelier(experience):
    part = select_rows(experience, np.array([5, 3, 1]))
    assert part.demonstrations.row.tolist() == [0, 1, 1]
    assert part.demonstrations.tokens.tolist() == [30, 31, 2, 7, 2, 100, 101, 102, 2]
    assert part.demonstrations.offsets.tolist() == [0, 3, 5, 9]
    assert select_rows(experience, np.array([1, 2])).demonstrations.row.tolist() == []
