"""What top_p and top_k left vLLM to choose from, read from the log-probabilities that it returns.

They are those of the cut distribution (`logprobs_mode="processed_logprobs"`), so what was cut has -inf. vLLM returns as
many of the likeliest tokens as a request asks for, so a mask is known where top_k bounds its size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mappa_core import ConfigError
from mappa_core.engine import EngineError, Sampling
from mappa_engine.arrays import Float32, Int32

MAX_TOP_K = 256
"""Largest top_k: every token of a mask costs the engine's process some time, and its place in `run.db`."""
MAX_CANDIDATES = 2 * MAX_TOP_K + 16
MIN_TEMPERATURE = 0.01
"""Temperature to which vLLM raises those below, but for 0: log-probabilities would be those of another one."""


def check_sampling(sampling: Sampling) -> None:
    """Raise ConfigError if vLLM would sample otherwise, or the mask of a request would be too large to be returned."""
    if 0.0 < sampling.temperature < MIN_TEMPERATURE:
        raise ConfigError(
            f"a temperature of {sampling.temperature:g}: vLLM would sample at {MIN_TEMPERATURE:g}; with the engine "
            f"cluster it is 0, which takes the likeliest token, or at least {MIN_TEMPERATURE:g}"
        )
    is_cut = sampling.temperature > 0.0 and (sampling.top_p < 1.0 or sampling.top_k > 0)
    if is_cut and not 0 < sampling.top_k <= MAX_TOP_K:
        raise ConfigError(
            f"sampling.top_k is {sampling.top_k}: with the engine cluster, top_p and top_k need a top_k from 1 to "
            f"{MAX_TOP_K}, so that vLLM can say which tokens they left; without, learning would be biased"
        )


def mask_candidates(sampling: Sampling, vocabulary: int) -> int:
    """Return the number of likeliest tokens to ask for; 0 if nothing is cut. Tokens as likely as the last of top_k are
    all left, so there may be more than top_k."""
    if sampling.top_k == 0 or sampling.temperature == 0.0:
        return 0
    return min(2 * sampling.top_k + 16, vocabulary)


def read_logprobs(found: Any, sampling: Sampling, vocabulary: int) -> tuple[Float32, Int32 | None, Int32 | None]:
    """Return the log-probabilities (T,) of the sampled tokens, and tokens and sizes of their masks (None: all uncut).

    `found` are vLLM's FlatLogprobs: per position the sampled token, then the likeliest ones.
    """
    values = np.array(found.logprobs, dtype=np.float32)
    starts = np.array(found.start_indices, dtype=np.int64)
    candidates = mask_candidates(sampling, vocabulary)
    if not candidates:
        return values[starts], None, None
    left = np.isfinite(values)
    left[starts] = False  # the sampled token is among the likeliest, too
    sizes = np.add.reduceat(left.astype(np.int32), starts).astype(np.int32)
    if candidates < vocabulary and (sizes == candidates).any():
        raise EngineError(
            f"sampling.top_k={sampling.top_k} left {candidates} tokens or more, as many are as likely as the last of "
            "them, and vLLM does not return them all; lower it, or set sampling.top_p=1 sampling.top_k=0"
        )
    return values[starts], np.array(found.token_ids, dtype=np.int32)[left], sizes
