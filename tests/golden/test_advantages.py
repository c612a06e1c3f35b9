"""Estimators and the length penalty against public code; advantages/README.md says where the numbers come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mappa.testing import load_plugins
from mappa_core import Completion, Experience, Message, Step, Task, Trajectory

FOLDER = Path(__file__).parent / "advantages"
FAMILIES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
NOT_OFFERED = FAMILIES.pop("not_offered")
LENGTH_PENALTY = FAMILIES.pop("length_penalty")["cases"]
NUMBER = {
    "gae": 15, "grpo": 22, "kl_in_rewards": 5, "per_action_returns": 6, "reinforce_plus_plus": 21,
    "reinforce_plus_plus_baseline": 16, "rloo": 18,
}  # fmt: skip
"""Cases of every file of the sources; beside them 4 of length penalties and 19 without a counterpart."""
ESTIMATOR = {"per_action_returns": "reinforce_plus_plus", "kl_in_rewards": "reinforce_plus_plus"}
WHITENING = ("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
CASES = [
    pytest.param(family, found["batches"][case["batch"]], case, id=f"{family} {case['name']}")
    for family, found in FAMILIES.items()
    for case in found["cases"]
]


@pytest.fixture(scope="module")
def registry():
    return load_plugins()


def rows_of(batch: Mapping[str, Any], how: str) -> tuple[list[int], list[float], list[int]]:
    """Lengths, rewards and trajectories of our rows."""
    rows = batch["actions"]
    if how == "together":
        return [sum(row) for row in rows], batch["reward"], list(range(len(rows)))
    lengths = [length for row in rows for length in row]
    trajectory = [number for number, row in enumerate(rows) for _ in row]
    if how == "actions":
        reward = [
            given for row, last in zip(rows, batch["reward"], strict=True) for given in (*[0] * (len(row) - 1), last)
        ]
    else:
        own = np.split(np.array(batch["action_reward"]), np.cumsum([len(row) for row in rows])[:-1])
        later = (list(accumulate(row[::-1]))[::-1] if how == "returns of actions" else row for row in own)
        reward = [float(given) for row in later for given in row]
    return lengths, reward, trajectory


def experience(batch: Mapping[str, Any], how: str) -> Experience:
    lengths, reward, trajectory = rows_of(batch, how)
    number, tokens = len(lengths), sum(lengths)
    zeros = np.zeros(number, np.int32)
    group = np.array(batch["group"], np.int32)[trajectory]

    def floats(name: str) -> np.ndarray | None:
        return np.array(batch[name], np.float32) if name in batch else None

    return Experience(
        agents=("agent",),
        policies=("agent",),
        trajectories=tuple(map(str, range(len(batch["actions"])))),
        tasks=tuple(map(str, range(max(batch["group"]) + 1))),
        strata=("all",),
        steps=tuple(map(str, range(number))),
        agent=zeros,
        policy=zeros,
        trajectory=np.array(trajectory, np.int32),
        task=group,
        group=group,
        stratum=zeros,
        position=np.arange(number, dtype=np.int32),
        turn=zeros,
        truncated=np.zeros(number, np.bool_),
        temperature=np.ones(number, np.float32),
        outcome=np.array(batch.get("outcome", [np.nan] * number), np.float32)[trajectory],
        reward=np.array(reward, np.float32),
        weight=np.ones(number, np.float32),
        tokens=np.zeros(tokens, np.int32),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        version=np.zeros(tokens, np.int32),
        logprobs=np.zeros(tokens, np.float32),
        prompt_tokens=zeros,
        prompt_offsets=np.arange(number + 1, dtype=np.int64),
        old_logprobs=floats("old_logprobs"),
        ref_logprobs=floats("ref_logprobs"),
        values=floats("values"),
        finished=np.ones(number, np.bool_),
    )


def results(registry: Any, family: str, batch: Mapping[str, Any], case: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """What we give and what the source gave, per token."""
    name, options = case.get("estimator", ESTIMATOR.get(family, family)), case["options"]
    rows = experience(batch, case.get("rows", "together"))

    def ours(**more: str) -> Any:
        offer = registry.offer("estimators", name)
        return registry.build("estimators", name, offer.options(**{**options, **more}))(rows, {})[0]

    n = len(rows.tokens)
    scale = np.sqrt((n - 1) / n) if case.get("variance") == "sample" else 1.0
    pairs = []
    if "row_advantages" in case:
        lengths = [sum(row) for row in batch["actions"]]
        pairs.append((ours().advantages * scale, np.repeat(case["row_advantages"], lengths)))
    if "advantages" in case:
        pairs.append((ours().advantages * scale, case["advantages"]))
    if "returns" in case:
        pairs.append((ours().value_targets if name == "gae" else ours(normalize="none").advantages, case["returns"]))
    return pairs


def close(found: Any, expected: Any, tolerance: float) -> np.ndarray:
    return np.isclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("family", "batch", "case"), CASES)
def test_every_case_matches_or_says_why_not(registry, family, batch, case) -> None:
    pairs = results(registry, family, batch, case)
    same = [close(*pair, case.get("tolerance", 1e-6)) for pair in pairs]
    assert pairs
    if "differs" in case:
        assert case["differs"]
        assert not all(one.all() for one in same)
    elif "but" in case:
        row = np.repeat(np.arange(len(batch["actions"])), [sum(actions) for actions in batch["actions"]])
        excepted = np.isin(row, case["but"]["rows"])
        assert case["but"]["reason"]
        assert all(np.array_equal(one, ~excepted) for one in same)
    else:
        assert all(one.all() for one in same)


def test_number_of_cases_per_family_is_as_recorded() -> None:
    """67 match, 36 are explained, and 19 have no counterpart."""
    assert {family: len(found["cases"]) for family, found in FAMILIES.items()} == NUMBER
    cases = [case for found in FAMILIES.values() for case in found["cases"]]
    assert all(len({case["name"] for case in found["cases"]}) == len(found["cases"]) for found in FAMILIES.values())
    explained = [case for case in cases if "differs" in case or "but" in case]
    assert len(cases) + len(LENGTH_PENALTY) == sum(NUMBER.values()) + 4
    assert (len(cases) - len(explained), len(explained), len(NOT_OFFERED)) == (67, 36, 19)


@pytest.mark.parametrize("case", LENGTH_PENALTY, ids=lambda case: case["name"])
def test_length_penalty(registry, case) -> None:
    steps = [
        Step(
            id=str(place),
            agent="agent",
            turn=place,
            position=place,
            policy="agent",
            messages=(),
            reply=Message(role="assistant", content=""),
            completion=Completion(
                text="",
                tokens=np.zeros(length, np.int32),
                prompt_tokens=np.zeros(1, np.int32),
                logprobs=np.zeros(length, np.float32),
                finish="stop",
            ),
        )
        for place, length in enumerate(case["lengths"])
    ]
    trajectory = Trajectory(id="t", task=Task(id="task", prompt=""), sample=0, iteration=0, steps=tuple(steps))
    options = registry.offer("shapers", "length_penalty").options(**case["options"])
    found = registry.build("shapers", "length_penalty", options)(trajectory, tuple(case["reward"]))
    excepted = np.isin(np.arange(len(steps)), case["but"]["rows"] if "but" in case else [])
    assert np.array_equal(close(found, case["rewards"], 1e-6), ~excepted)
