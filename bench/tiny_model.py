"""A randomly initialised model of the size that the tiny recipe trains, in a folder."""

from __future__ import annotations

from pathlib import Path

from mappa_mathchat.tiny.warm_start import WARM_START


def write_model(folder: Path, seed: int = 0) -> str:
    """Write model and tokenizer; the folder as a model is named."""
    made = WARM_START.untrained_model(["Ana has 38 pens. Ana sells 9. How many pens?", "start 38\nsub 9"], seed)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return str(folder)
