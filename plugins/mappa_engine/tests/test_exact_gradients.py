"""From verdicts to the gradient that an optimiser is given, against the exact policy gradient: every batch that can be
sampled goes through the estimator, the loss and `PolicyUpdate`, with tables in float64 for weights."""

from collections import defaultdict
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch

from mappa.look.conformance import Action, Decision, DecisionProcess, gradient_of, policy_gradient, possible_batches
from mappa.look.conformance.standard_processes import MISSING, SHARED, VARIABLE_TURNS
from mappa.testing import load_plugins
from mappa_core import Advantages
from mappa_core.engine import CorrectionSection, TrainSection, select_rows
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.logprob_model import Predictions
from mappa_engine.learning.update import PolicyUpdate

REGISTRY = load_plugins(only=("engine", "sandbox"))
LOSSES = ("ppo", "gspo", "cispo", "sapo", "vespo")
TRAIN = TrainSection(iterations=10, learning_rate=0.1)
# Ranks, and layouts with room for one sequence, a few, or all.
SPREADS = [
    (1, BatchLayout("padded", 10_000)),
    (1, BatchLayout("padded", 1)),
    (2, BatchLayout("padded", 10)),
    (3, BatchLayout("packed", 14)),
]


def built(kind, name, **options):
    return REGISTRY.build(kind, name, REGISTRY.offer(kind, name).options(**options))


class Tables:
    """A rank of a learner whose weights are the tables of one policy, in float64. It keeps its part of the gradient and
    moves nothing: what all ranks kept adds up to the gradient of the step. Ranks take turns, and see the sums of those
    before them."""

    device = torch.device("cpu")

    def __init__(self, process, name, rank, ranks, sums):
        self._sums = sums
        self.name, self.rank, self.ranks, self.steps = name, rank, ranks, 0
        self.logits = torch.tensor(
            [np.log(process.tables[policy, context][token]) for policy, context, token in process.parameters],
            dtype=torch.float64,
            requires_grad=True,
        )
        self.gradient = np.zeros(len(process.parameters))
        self.passes = 0
        self._place = {parameter: place for place, parameter in enumerate(process.parameters)}
        tables = {}
        self._table = torch.tensor([tables.setdefault(parameter[:2], len(tables)) for parameter in process.parameters])

    def forward(self, batch, *, entropy=False):
        assert not entropy
        self.passes += 1
        sums = torch.zeros_like(self.logits).index_add(0, self._table, self.logits.exp())
        logprobs = self.logits - sums.log()[self._table]
        if batch.dummy:
            return Predictions(logprobs[:1])
        return Predictions(logprobs[[self._place[self.name, *asked] for asked in self._asked(batch)]])

    def _asked(self, batch):
        """What was read before each sampled token, however the sequences lie."""
        ids, width = batch.ids.flatten().tolist(), batch.ids.shape[1]
        for before, token in zip(batch.predicting.tolist(), batch.targets.tolist(), strict=True):
            into = before % width if batch.positions is None else int(batch.positions[0, before])
            yield tuple(ids[before - into : before + 1]), token

    def backward(self, loss, *, last):
        loss.backward()

    def grad_norm(self):
        return float(self.logits.grad.norm())

    def step(self, learning_rate):
        self.gradient += self.logits.grad.numpy()
        self.zero_grad()

    def zero_grad(self):
        self.logits.grad = None

    def all_reduce(self, sums):
        for name, value in sums.items():
            self._sums[name] += value
        return dict(self._sums)


def in_float64(process, experience):
    """The experience with log-probabilities as exact as the tables, so that ratios are 1 to the last digit."""
    found = []
    for row in range(len(experience.reward)):
        context = tuple(experience.prompt_tokens[slice(*experience.prompt_offsets[row : row + 2])].tolist())
        policy = experience.policies[experience.policy[row]]
        for token in experience.tokens[slice(*experience.offsets[row : row + 2])].tolist():
            found.append(np.log(process.tables[policy, context][token]))
            context += (token,)
    exact = np.array(found)
    return replace(experience, logprobs=exact, old_logprobs=exact)


def gradient(process, experience, given, loss, spread=SPREADS[0], train=TRAIN, skips_idle=False):
    """What the optimisers are given, (P,), over all policies and ranks."""
    ranks, layout = spread
    total = np.zeros(len(process.parameters))
    for policy in experience.policies:
        passes, sums = set(), defaultdict(float)
        for rank in range(ranks):
            learner = Tables(process, policy, rank, ranks, sums)
            update = PolicyUpdate(learner, experience, given, loss, train, layout=layout, skips_idle=skips_idle)
            update.run(0.1, seed=3)
            total += learner.gradient
            passes.add(learner.passes)
        assert len(passes) == 1, "ranks wait for each other"
    return total


def expected(process, estimator, loss, **settings):
    total = np.zeros(len(process.parameters))
    for batch in possible_batches(process):
        given, _ = estimator(batch.experience, {})
        total += batch.chance * gradient(process, in_float64(process, batch.experience), given, loss, **settings)
    return total


def coins(agent, prompt, points, then, length):
    """Two actions of `length` tokens; the first token is the choice."""
    return Decision(
        agent=agent,
        prompt=prompt,
        actions=tuple(
            Action(
                tokens=(token, *range(30, 29 + length)),
                chances=(chance, *[1.0] * (length - 1)),
                points=worth,
                then=after,
            )
            for token, chance, worth, after in zip((5, 6), (0.25, 0.75), points, then, strict=True)
        ),
    )


def even():
    """As many rows and tokens in every batch, so that a mean over them is a sum over a fixed number: solver (2 tokens),
    checker (1 token), and the solver again, reading on where it stopped."""

    def last(prompt):
        return coins("solver", prompt, (2.0, 1.0), (0.0, 1.0), 2)

    def check(said):
        prompt = (1, said, 30, 2)
        points = (3.0, 8.0) if said == 5 else (6.0, 0.0)
        return coins("checker", prompt, points, (last((*prompt, 5, 7)), last((*prompt, 6, 7))), 1)

    root = coins("solver", (1,), (4.0, 1.0), (check(5), check(6)), 2)
    return DecisionProcess(name="even", tasks=(root,), policies={"solver": "solver", "checker": "checker"})


EVEN = even()
PER_BATCH = {"solver": 2 * 2 * 2, "checker": 2 * 1 * 1}
"""Sampled tokens of each policy in a batch of two trajectories."""


@pytest.mark.parametrize("loss, estimator", [("ppo", "rloo"), *[(loss, "reinforce") for loss in LOSSES]])
def test_estimators_and_losses_give_the_policy_gradient(loss, estimator):
    """Loss and mean over tokens: -2/N of the policy gradient per trajectory, to the last digits of float64."""
    found = expected(EVEN, built("estimators", estimator), built("losses", loss), spread=SPREADS[2])
    tokens = np.array([PER_BATCH[policy] for policy, _, _ in EVEN.parameters])
    exact = policy_gradient(EVEN, "action")
    off = np.abs(found + 2.0 / tokens * exact).max()
    print(f"{loss} x {estimator}: off by {off:.2g}, gradient {np.abs(found).max():.3g}")
    assert off < 1e-10


@pytest.mark.parametrize(
    "loss, spread",
    [
        *[("ppo", spread) for spread in SPREADS],
        *[("gspo", spread) for spread in SPREADS],
        ("cispo", SPREADS[3]),
        ("vespo", SPREADS[2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("process", [VARIABLE_TURNS, SHARED, MISSING], ids=lambda process: process.name)
def test_gradient_does_not_depend_on_micro_batches_ranks_and_padding(process, loss, spread):
    """On batches of rows and trajectories of different lengths: the gradient is the weighted score of the mean over
    tokens, however they are laid out."""
    gaps = []
    for batch in possible_batches(process)[:: len(possible_batches(process)) // 6]:
        given, _ = built("estimators", "reinforce")(batch.experience, {})
        found = gradient(process, in_float64(process, batch.experience), given, built("losses", loss), spread)
        by_hand = gradient_of(process, batch, given.advantages.astype(np.float64), "tokens")
        gaps.append(np.abs(found + by_hand).max())
    print(f"{process.name}, {loss}, {spread}: off by {max(gaps):.2g} in {len(gaps)} batches")
    assert max(gaps) < 1e-10


@pytest.mark.parametrize("mean", ["sequence", "fixed"])
def test_other_means_are_exact(mean):
    train = replace(TRAIN, mean=mean, mean_length=5)
    for batch in possible_batches(VARIABLE_TURNS)[::60]:
        given, _ = built("estimators", "reinforce")(batch.experience, {})
        advantages = given.advantages.astype(np.float64)
        if mean == "sequence":
            by_hand = gradient_of(VARIABLE_TURNS, batch, advantages, "rows")
        else:
            lengths = batch.experience.lengths[batch.experience.row_of_token]
            by_hand = gradient_of(VARIABLE_TURNS, batch, advantages * lengths / 5, "rows")
        for spread in SPREADS[1:]:
            experience = in_float64(VARIABLE_TURNS, batch.experience)
            found = gradient(VARIABLE_TURNS, experience, given, built("losses", "ppo"), spread, train)
            np.testing.assert_allclose(found, -by_hand, atol=1e-10)


def test_token_advantages_stay_with_their_tokens():
    for batch in possible_batches(SHARED)[::9]:
        drawn = np.random.default_rng(7).normal(size=len(batch.experience.tokens)).astype(np.float32)
        by_hand = gradient_of(SHARED, batch, drawn.astype(np.float64), "tokens")
        for loss in LOSSES:
            found = gradient(
                SHARED,
                in_float64(SHARED, batch.experience),
                Advantages(advantages=drawn),
                built("losses", loss),
                SPREADS[3],
            )
            np.testing.assert_allclose(found, -by_hand, atol=1e-10)


COIN = DecisionProcess(
    name="coin",
    tasks=(coins("solver", (1,), (4.0, 1.0), (0.0, 1.0), 1),),
    policies={"solver": "solver"},
    samples=1,
)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_divergence_in_the_loss_has_the_exact_gradient(kind):
    """p = (1/4, 3/4), reference q = (1/2, 1/2), d = log p/q. The gradients of the estimates, on average over p:

    k1 = d                  E[s] = 0: nothing at all
    k2 = d^2 / 2            E[d s]: the gradient of KL(p||q)
    k3 = exp(-d) - 1 + d    E[(1 - q/p) s] = -sum q s: the gradient of KL(q||p)
    """
    total = np.zeros(2)
    for batch in possible_batches(COIN):
        experience = in_float64(COIN, batch.experience)
        experience = replace(experience, ref_logprobs=np.full(1, np.log(0.5)))
        nothing = Advantages(advantages=np.zeros(1, np.float32))
        total += batch.chance * gradient(COIN, experience, nothing, built("losses", "ppo", kl=kind, kl_coef=1.0))
    slope = {"k1": 0.0, "k2": 0.25 * 0.75 * np.log(0.25 / 0.75), "k3": 0.25 - 0.5}[kind]
    print(f"{kind}: {total[0]:.6g}")
    np.testing.assert_allclose(total, [slope, -slope], atol=1e-10)


@pytest.mark.parametrize("kind", ["k2", "k3_corrected"])
def test_divergence_off_policy_has_the_same_importance_weights(kind):
    """The sampler's (1/2, 1/2) gives the gradient of the learner's KL(p||q), p = (1/4, 3/4), where every token's
    divergence weighs by p over the sampler; unweighed it would be E_sampler[log(p/q) s]."""
    train = replace(TRAIN, correction=CorrectionSection(kind="truncate", cap=100.0))
    sampler = (0.5, 0.5)
    found = {}
    for corrected in (True, False):
        total = np.zeros(2)
        for batch, chance in zip(possible_batches(COIN), sampler, strict=True):
            experience = in_float64(COIN, batch.experience)
            experience = replace(experience, logprobs=np.log([chance]), ref_logprobs=np.log([0.375]))
            nothing = Advantages(advantages=np.zeros(1, np.float32))
            loss = built("losses", "ppo", kl=kind, kl_coef=1.0)
            given = train if corrected else replace(TRAIN, correction=CorrectionSection(kind="none"))
            total += chance * gradient(COIN, experience, nothing, loss, train=given)
        found[corrected] = total
    gaps = np.log(0.25 / 0.375), np.log(0.75 / 0.375)
    slope = 0.25 * (gaps[0] - (0.25 * gaps[0] + 0.75 * gaps[1]))
    np.testing.assert_allclose(found[True], [slope, -slope], atol=1e-6)
    assert np.abs(found[False] - found[True]).max() > 0.03


class Steps(Tables):
    """Counts the sampled tokens of every step."""

    def __init__(self, process, name):
        super().__init__(process, name, 0, 1, defaultdict(float))
        self.sizes, self._size = [], 0

    def forward(self, batch, *, entropy=False):
        self._size += len(batch.source)
        return super().forward(batch, entropy=entropy)

    def step(self, learning_rate):
        self.sizes.append(self._size)
        self._size = 0
        super().step(learning_rate)


@pytest.mark.parametrize(
    ("rows", "limit", "sizes"), [(65, 64, [33, 32]), (64, 32, [32, 32]), (7, 3, [3, 2, 2]), (3, 9, [3])]
)
def test_minibatches_are_even(rows, limit, sizes):
    """Under AdamW a step on one row left over moves the weights as far as one on all the others."""
    process = replace(COIN, samples=rows)
    one = possible_batches(COIN)[0].experience
    whole = select_rows(one, np.zeros(rows, np.int64))
    whole = replace(whole, steps=tuple(map(str, range(rows))), trajectory=np.arange(rows, dtype=np.int32))
    learner = Steps(process, "solver")
    nothing = Advantages(advantages=np.zeros(rows, np.float32))
    train = replace(TRAIN, minibatch_rows=limit, epochs=2)
    update = PolicyUpdate(
        learner, in_float64(COIN, whole), nothing, built("losses", "ppo"), train, layout=SPREADS[0][1]
    )
    assert update.run(0.1, seed=3)["steps"] == 2 * len(sizes)
    assert learner.sizes == sizes * 2


def two_tokens(first, second):
    """One decision of four actions of two tokens; `second` is by the first token."""
    return DecisionProcess(
        name="two tokens",
        tasks=(
            Decision(
                agent="solver",
                prompt=(1,),
                actions=tuple(
                    Action(tokens=(5 + low, 7 + two), chances=(p, q), points=points, then=0.0)
                    for low, p in enumerate((first, 1.0 - first))
                    for two, q in enumerate((second[low], 1.0 - second[low]))
                    for points in [((8.0, 1.0), (0.0, 4.0))[low][two]]
                ),
            ),
        ),
        policies={"solver": "solver"},
        samples=1,
    )


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_only_sequence_correction_is_exact_off_policy(level):
    """Sampled by one table, learned by another. Weighed by the ratio of whole actions the expectation is the learner's
    policy gradient; by the ratio of each token alone it lacks the other token's, and differs by just that."""
    sampler, learner = two_tokens(0.5, (0.5, 0.25)), two_tokens(0.25, (0.75, 0.5))
    train = replace(TRAIN, correction=CorrectionSection(kind="truncate", level=level, cap=100.0))
    total = np.zeros(len(learner.parameters))
    for batch in possible_batches(sampler):
        theirs, ours = (in_float64(policy, batch.experience).logprobs for policy in (sampler, learner))
        experience = replace(batch.experience, logprobs=theirs, old_logprobs=ours)
        given, _ = built("estimators", "reinforce")(experience, {})
        total -= 2.0 * batch.chance * gradient(learner, experience, given, built("losses", "ppo"), train=train)
    by_hand = np.zeros_like(total)
    (sampled,), (learned,) = sampler.tasks, learner.tasks
    for action, other in zip(sampled.actions, learned.actions, strict=True):
        ratios = np.array(other.chances) / np.array(action.chances)
        weights = np.full(2, prod(ratios)) if level == "sequence" else ratios
        by_hand += action.chance * action.points * (weights @ learner.scores(learned, other))
    np.testing.assert_allclose(total, by_hand, atol=1e-6)
    off = np.abs(total - policy_gradient(learner, "action")).max()
    print(f"{level}: off by {off:.3g}")
    assert off < 1e-6 if level == "sequence" else off > 0.1
