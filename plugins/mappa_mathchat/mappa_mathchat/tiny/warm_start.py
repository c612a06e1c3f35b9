"""How the tiny model is made. The one in `models/tiny` was built by `mappa mathchat warm-start models/tiny`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from mappa_engine import Curriculum, WarmStart, warm_start_command

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from mappa_mathchat.tiny.demonstrations import Demonstrations

VOCABULARY_SIZE = 384
"""Entries of the tokenizer."""
WARMUP_STEPS = 50


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over `WARMUP_STEPS`, then a cosine decay to the end."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / steps))


def problem_texts(curriculum: Curriculum) -> frozenset[str]:
    """Return the texts of the problems in the training conversations so far."""
    return frozenset(curriculum.faultless.problem_texts | curriculum.faulty.problem_texts)  # type: ignore[attr-defined]


def hash_problem_texts(texts: Iterable[str]) -> str:
    """Compute the sha256 of problem texts, independent of their order."""
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()


def _demonstrate(faulty: bool, rng: Random) -> Demonstrations:
    from mappa_mathchat.tiny.demonstrations import NO_FAULTS, Demonstrations, FaultProbabilities
    from mappa_mathchat.workflow import MathChat, MathChatOptions

    workflow = MathChat(MathChatOptions(prompts="tiny"))
    return Demonstrations(workflow, FaultProbabilities() if faulty else NO_FAULTS, rng)


def _train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    from mappa_engine import byte_pairs

    return byte_pairs(texts, VOCABULARY_SIZE)


def _describe_problems(curriculum: Curriculum) -> Mapping[str, Any]:
    texts = problem_texts(curriculum)
    return {"problems": len(texts), "problems_sha256": hash_problem_texts(texts)}


WARM_START = WarmStart(
    package="mappa-mathchat",
    demonstrator=_demonstrate,
    tokenizer=_train_tokenizer,
    window=2048,
    shape={
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
    conversations_per_step=32,
    learning_rate_factor=learning_rate_factor,
    half=True,
    manifest=_describe_problems,
)
warm_start = warm_start_command(WARM_START, steps=1600, minutes="four CPU minutes", draws="problems")
