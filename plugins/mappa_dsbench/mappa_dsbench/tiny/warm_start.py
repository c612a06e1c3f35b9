"""How the tiny model is made. The one in `models/tiny` was built by `mappa dsbench warm-start models/tiny`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from mappa_engine import Curriculum, WarmStart, warm_start_command

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from mappa_dsbench.tiny.demonstrations import Demonstrations

WARMUP_STEPS = 50


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over `WARMUP_STEPS`, constant to the middle, then a linear
    decay to the end."""
    return min(1.0, (step + 1) / WARMUP_STEPS, 2 * (1 - step / steps))


def _demonstrate(faulty: bool, rng: Random) -> Demonstrations:
    from mappa_dsbench.tiny.demonstrations import Demonstrations
    from mappa_dsbench.tiny.planted_faults import NO_FAULTS, FaultProbabilities

    return Demonstrations(FaultProbabilities() if faulty else NO_FAULTS, rng)


def _train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    from mappa_dsbench.tiny.tokenizer import train_tokenizer

    return train_tokenizer(texts)


def _count_conversations(curriculum: Curriculum) -> Mapping[str, Any]:
    return {"conversations": curriculum.steps * curriculum.conversations_per_step}


WARM_START = WarmStart(
    package="mappa-dsbench",
    demonstrator=_demonstrate,
    tokenizer=_train_tokenizer,
    window=1024,
    shape={
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "initializer_range": 0.1,  # the usual 0.02 is for wider layers: names are then copied much later
    },
    conversations_per_step=16,
    sorted_steps=32,
    learning_rate_factor=learning_rate_factor,
    half=False,
    manifest=_count_conversations,
)
warm_start = warm_start_command(WARM_START, steps=5600, minutes="seven CPU minutes", draws="names")
