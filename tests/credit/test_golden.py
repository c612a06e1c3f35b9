"""Our estimators against the numbers of public code; golden/README.md says where they come from and how they differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mappa_core.credit.estimators import (
    Grpo,
    GrpoOptions,
    ReinforcePlusPlus,
    ReinforcePlusPlusOptions,
    Rloo,
    RlooOptions,
)

TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}


def golden(name: str) -> list[Any]:
    data = json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
    return [pytest.param(data["batches"][case["batch"]], case, id=case["name"]) for case in data["cases"]]


@pytest.mark.parametrize(("batch", "case"), golden("reinforce_plus_plus"))
def test_reinforce_plus_plus(batch, case, make_experience) -> None:
    experience = make_experience(**batch)
    n = sum(batch["lengths"])
    variance = (n - 1) / n if case["source"] == "verl" else 1.0
    result, _ = ReinforcePlusPlus(ReinforcePlusPlusOptions(**case["options"], normalize="all"))(experience, {})
    np.testing.assert_allclose(result.advantages * np.sqrt(variance), case["advantages"], **TOLERANCE)
    if "returns" in case:
        result, _ = ReinforcePlusPlus(ReinforcePlusPlusOptions(**case["options"], normalize="none"))(experience, {})
        np.testing.assert_allclose(result.advantages, case["returns"], **TOLERANCE)


def expected_tokens(batch, case) -> np.ndarray:
    group = np.array(batch["group"])
    alone = np.bincount(group)[group] == 1
    return np.repeat(np.where(alone, 0.0, case["row_advantages"]), batch["lengths"])


@pytest.mark.parametrize(("batch", "case"), golden("rloo"))
def test_rloo(batch, case, make_experience) -> None:
    result, _ = Rloo(RlooOptions(**case["options"]))(make_experience(**batch), {})
    np.testing.assert_allclose(result.advantages, expected_tokens(batch, case), **TOLERANCE)


@pytest.mark.parametrize(("batch", "case"), golden("grpo"))
def test_grpo(batch, case, make_experience) -> None:
    result, _ = Grpo(GrpoOptions(**case["options"]))(make_experience(**batch), {})
    np.testing.assert_allclose(result.advantages, expected_tokens(batch, case), **TOLERANCE)
