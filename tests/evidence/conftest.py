"""The scripts of docs/evidence import each other, as scripts do that are started in their folder."""

import sys
from pathlib import Path

import numpy as np
import pytest

from mappa_core import Experience

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "evidence"))

ROWS = 40


@pytest.fixture
def experience():
    """Makes rows of one to three tokens and rewards 0, 1, 2, …; the rows in `lost` have none."""

    def make(lost=()):
        reward = np.arange(ROWS, dtype=np.float32)
        weight = np.ones(ROWS, np.float32)
        reward[list(lost)], weight[list(lost)] = np.nan, 0.0
        offsets = np.concatenate([[0], np.cumsum(1 + np.arange(ROWS) % 3)]).astype(np.int64)
        index, tokens = np.zeros(ROWS, np.int32), np.zeros(offsets[-1], np.int32)
        return Experience(
            agents=("solver", "coder"),
            policies=("solver", "coder"),
            trajectories=("t",),
            tasks=("task",),
            strata=("all",),
            steps=tuple(map(str, range(ROWS))),
            agent=(np.arange(ROWS) % 2).astype(np.int32),
            policy=(np.arange(ROWS) % 2).astype(np.int32),
            trajectory=index,
            task=index,
            group=index,
            stratum=index,
            position=index,
            turn=index,
            truncated=np.zeros(ROWS, np.bool_),
            temperature=np.ones(ROWS, np.float32),
            outcome=np.zeros(ROWS, np.float32),
            reward=reward,
            weight=weight,
            tokens=tokens,
            offsets=offsets,
            version=tokens,
            logprobs=tokens.astype(np.float32),
            prompt_tokens=index,
            prompt_offsets=np.arange(ROWS + 1, dtype=np.int64),
        )

    return make
