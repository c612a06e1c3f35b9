"""Actions that teach nothing are not computed, and the gradient is the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mappa.testing import load_plugins
from mappa_core import Advantages
from mappa_core.engine import TrainSection
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.idle_rows import find_idle_rows
from mappa_engine.learning.learner import Learner
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.learning.update import PolicyUpdate

REGISTRY = load_plugins(only=("engine", "sandbox"))
LOSSES = ("ppo", "gspo", "cispo", "sapo", "vespo")
TRAIN = TrainSection(iterations=10, learning_rate=1e-2, minibatch_rows=4)
IDLE = (1, 2, 4, 6)


def built(name, **options):
    return REGISTRY.build("losses", name, REGISTRY.offer("losses", name).options(**options))


def worth(experience):
    """Advantages of eight rows: half of them are 0."""
    values = np.random.default_rng(3).normal(size=len(experience.tokens)).astype(np.float32)
    values[np.isin(experience.row_of_token, IDLE)] = 0.0
    return Advantages(advantages=values)


@pytest.fixture
def experience(kit):
    made = kit.experience([replace(row, weight=1.0) for row in kit.rows(8)])
    return replace(made, old_logprobs=made.logprobs)


class Steps(Learner):
    """Takes plain gradient steps, and keeps how many rows it computed."""

    name, rank, ranks, steps, device = "solver", 0, 1, 0, torch.device("cpu")

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.rows = 0

    def forward(self, batch, *, entropy=False):
        self.rows += len(batch.ids)
        return LogprobModel(self.model)(batch)

    def backward(self, loss, *, last):
        loss.backward()

    def all_reduce(self, sums):
        return sums

    def grad_norm(self):
        return float(sum(weight.grad.square().sum() for weight in self.model.parameters()) ** 0.5)

    def step(self, learning_rate):
        with torch.no_grad():
            for weight in self.model.parameters():
                weight -= learning_rate * weight.grad
        self.zero_grad()

    def zero_grad(self):
        for weight in self.model.parameters():
            weight.grad = None


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_weights_are_the_same_with_half_of_the_rows_computed(qwen3, experience, name, mean):
    found, layout = {}, BatchLayout("padded", 4096)
    for skips in (False, True):
        learner = Steps(qwen3)
        train = replace(TRAIN, mean=mean)
        update = PolicyUpdate(
            learner, experience, worth(experience), built(name), train, layout=layout, skips_idle=skips
        )
        metrics = update.run(0.5, seed=1)
        assert (metrics["rows"], metrics["steps"], metrics.get("idle_rows")) == (8.0, 2.0, 4.0 if skips else None)
        found[skips] = learner
    assert (found[False].rows, found[True].rows) == (8, 4)
    for own, expected in zip(found[True].model.parameters(), found[False].model.parameters(), strict=True):
        torch.testing.assert_close(own, expected, atol=1e-6, rtol=1e-5)


def test_a_step_of_idle_rows_is_taken(qwen3, experience):
    """Without it the moments of Adam would not decay, and the metrics of the iteration would have no step."""
    learner, layout = Steps(qwen3), BatchLayout("padded", 4096)
    nothing = Advantages(advantages=np.zeros(len(experience.tokens), np.float32))
    metrics = PolicyUpdate(learner, experience, nothing, built("ppo"), TRAIN, layout=layout, skips_idle=True).run(
        0.5, seed=1
    )
    assert (metrics["steps"], metrics["idle_rows"], metrics["grad_norm"], learner.rows) == (2.0, 8.0, 0.0, 2)


class OwnPenalty:
    """A loss of somebody else, which pulls log-probabilities to those before the update."""

    def __call__(self, new_logprobs, rows, advantages):
        losses, sums = built("ppo")(new_logprobs, rows, advantages)
        return losses + (new_logprobs - rows.old_logprobs) ** 2, sums


def with_reference(experience):
    return replace(experience, ref_logprobs=experience.logprobs - 0.1)


@pytest.mark.parametrize(
    ("change", "loss", "train"),
    [
        (with_reference, built("ppo", kl="k3", kl_coef=0.1), TRAIN),
        (lambda experience: experience, OwnPenalty(), TRAIN),
        (lambda experience: experience, built("ppo"), replace(TRAIN, entropy_coef=0.01)),
    ],
    ids=["divergence", "penalty of a plugin", "entropy"],
)
def test_rows_with_another_gradient_are_computed(experience, change, loss, train):
    experience = change(experience)
    assert not find_idle_rows(experience, np.arange(8), worth(experience), loss, train).any()


def test_rows_with_values_to_learn_are_computed(experience):
    given = replace(worth(experience), value_targets=np.zeros(len(experience.tokens), np.float32))
    assert not find_idle_rows(experience, np.arange(8), given, built("ppo"), TRAIN).any()


def test_a_reference_that_only_a_metric_reads_makes_no_gradient(experience):
    found = find_idle_rows(with_reference(experience), np.arange(8), worth(experience), built("ppo"), TRAIN)
    assert tuple(np.flatnonzero(found)) == IDLE
