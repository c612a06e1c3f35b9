"""Losses, means and importance weights against public code, through the update that every engine drives."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mappa.testing import load_plugins
from mappa_core import Advantages, Experience
from mappa_core.engine import CorrectionSection, TrainSection
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.importance_weights import compute_importance_weights
from mappa_engine.learning.logprob_model import Predictions
from mappa_engine.learning.update import PolicyUpdate
from mappa_engine.losses.kl_penalty import KL_ESTIMATORS

FOLDER = Path(__file__).parent / "losses"
REGISTRY = load_plugins(only=("engine", "sandbox"))
FAMILIES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
CASES = [(family, case) for family, found in FAMILIES.items() for case in found["cases"]]
UPDATES = [
    pytest.param(FAMILIES[family]["batches"][case["batch"]], case, id=f"{family} {case['name']}")
    for family, case in CASES
    if family != "kl" and "differs" not in case
]
NUMBER = {
    "cispo": 6, "gspo": 16, "kl": 14, "micro_batch": 14, "mis": 14, "other": 12, "ppo_clip": 16, "ppo_variants": 13,
    "tis": 13,
}  # fmt: skip
"""Cases of every file of the sources."""


class Table:
    """A learner whose weights are the log-probabilities and values of an iteration's tokens themselves."""

    name, device, rank, ranks, steps = "policy", torch.device("cpu"), 0, 1, 0

    def __init__(self, logprobs, values=None) -> None:
        self.logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
        self.values = None if values is None else torch.tensor(values, dtype=torch.float64, requires_grad=True)
        self.passes = 0

    def forward(self, batch, *, entropy=False) -> Predictions:
        return Predictions(self.logprobs[batch.source], None if self.values is None else self.values[batch.source])

    def backward(self, loss, *, last) -> None:
        self.passes += 1
        loss.backward()

    def grad_norm(self) -> float:
        return 1.0

    def step(self, learning_rate) -> None:
        pass

    def all_reduce(self, sums):
        return dict(sums)


def experience_of(batch, old="old") -> Experience:
    """Rows without tokens are none of ours; every row has one token of prompt and a trajectory of its own."""
    lengths = [length for length in batch["lengths"] if length]
    rows, tokens = len(lengths), sum(lengths)
    columns = {name: np.zeros(rows, np.int32) for name in ("agent", "policy", "task", "group", "stratum", "turn")}
    numbers = np.arange(rows, dtype=np.int32)
    sampled = batch.get("sampled", batch[old])
    return Experience(
        agents=("agent",), policies=("policy",), trajectories=tuple(f"t{row}" for row in numbers), tasks=("task",),
        strata=("all",), steps=tuple(f"s{row}" for row in numbers), trajectory=numbers, position=numbers, **columns,
        truncated=np.zeros(rows, np.bool_), temperature=np.ones(rows, np.float32), outcome=np.ones(rows, np.float32),
        reward=np.ones(rows, np.float32), weight=np.ones(rows, np.float32),
        tokens=np.ones(tokens, np.int32), offsets=np.cumsum([0, *lengths]), version=np.zeros(tokens, np.int32),
        logprobs=np.array(sampled), prompt_tokens=np.ones(rows, np.int32), prompt_offsets=np.arange(rows + 1),
        old_logprobs=np.array(batch[old]), ref_logprobs=np.array(batch.get("ref", batch[old])),
    )  # fmt: skip


def per_token(batch, kind):
    if kind == "token":
        return np.array(batch["token"])
    return np.repeat(batch["row"], batch["lengths"])


def updated(batch, case, *, micro_tokens, mean=None):
    """What one step on a whole batch gives, in micro-batches of so many tokens."""
    correction = CorrectionSection(**case.get("correction", {"kind": "none"}))
    train = TrainSection(iterations=1, micro_tokens=micro_tokens, correction=correction, **case["train"] | (mean or {}))
    experience = experience_of(batch, case.get("old", "old"))
    nothing = np.zeros(len(experience.tokens))
    if case["loss"] == "value":
        loss, given = "ppo", Advantages(advantages=nothing, value_targets=np.array(batch[case["targets"]]))
        learner = Table(batch["old"], batch["values"])
        experience = replace(experience, values=np.array(batch[case["old"]]), old_logprobs=np.array(batch["old"]))
    else:
        loss, given = case["loss"], Advantages(advantages=per_token(batch, case["advantages"]))
        learner = Table(batch["new"])
    options = REGISTRY.offer("losses", loss).options(**case.get("options", {}))
    built, layout = REGISTRY.build("losses", loss, options), BatchLayout("packed", micro_tokens)
    return learner, PolicyUpdate(learner, experience, given, built, train, layout=layout).run(0.0, seed=0)


def assert_golden(found, expected) -> None:
    expected = np.asarray(expected)
    gap = np.abs(np.asarray(found) - expected) / np.maximum(1.0, np.abs(expected))
    assert gap.max() <= 1e-6


@pytest.mark.parametrize(("batch", "case"), UPDATES)
@pytest.mark.parametrize("micro_tokens", [9, 1000])
def test_step_matches_public_code(batch, case, micro_tokens):
    if "value" in case:
        learner, metrics = updated(batch, case, micro_tokens=micro_tokens)
        assert learner.passes == 1 if micro_tokens == 1000 else learner.passes > 2
        assert_golden(metrics["loss"], case["value"])
        assert_golden((learner.logprobs if learner.values is None else learner.values).grad, case["grad"])
    if "weights" in case:
        experience = experience_of(batch)
        found = compute_importance_weights(
            experience, np.arange(len(experience.weight)), CorrectionSection(**case["correction"])
        )
        assert_golden(found.weights, case["weights"])


@pytest.mark.parametrize("case", [case for _, case in CASES if "estimate" in case], ids=lambda case: case["name"])
def test_divergence_matches_public_code(case):
    batch = FAMILIES["kl"]["batches"]["kl"]
    logprobs = torch.tensor(batch["old"], dtype=torch.float64, requires_grad=True)
    found = KL_ESTIMATORS[case["estimate"]](logprobs, torch.tensor(batch["ref"], dtype=torch.float64))
    found.sum().backward()
    compared = np.setdiff1d(np.arange(len(batch["old"])), case.get("clamped", []))
    assert_golden(found.detach()[compared], np.array(case["value"])[compared])
    assert_golden(logprobs.grad[compared], np.array(case["grad"])[compared])
    for token in case.get("clamped", []):
        assert abs(found[token].item()) > abs(case["value"][token]) == 10.0
        assert (case["grad"][token], logprobs.grad[token] != 0.0) == (0.0, True)


def test_every_case_is_matched_or_explained():
    assert {family: len(found["cases"]) for family, found in FAMILIES.items()} == NUMBER
    explained = [case for _, case in CASES if "differs" in case]
    assert all(len(case["differs"]) > 40 for case in explained)
    matched = [case for _, case in CASES if "differs" not in case]
    assert all({"value", "weights"} & case.keys() for case in matched)
    assert (len(matched), len(explained)) == (78, 40)
    assert sum(NUMBER.values()) == len(matched) + len(explained)
    named = [case["name"].startswith(("openrlhf", "verl", "trl", "marti")) for _, case in CASES]
    assert all(named)


def test_mean_of_means_does_not_match():
    """The case behind the rule that a mean is over the whole step: another mean gives another number."""
    batch = FAMILIES["micro_batch"]["batches"]["b"]
    case = next(case for family, case in CASES if family == "micro_batch" and case["name"].endswith("full_token-mean"))
    _, token = updated(batch, case, micro_tokens=9)
    _, sequence = updated(batch, case, micro_tokens=9, mean={"mean": "sequence"})
    assert (token["loss"], sequence["loss"]) == (pytest.approx(0.3916006363), pytest.approx(0.3045394172))
