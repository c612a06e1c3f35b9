"""A randomly initialised model of the size that the tiny recipe trains, in a folder."""

from __future__ import annotations

from pathlib import Path

from mappa_mathchat.tiny.tokenizer import build_tokenizer
from mappa_mathchat.tiny.warmstart import WINDOW, build_model


def write_model(folder: Path, seed: int = 0) -> str:
    """Write model and tokenizer; the folder as a model is named."""
    tokenizer = build_tokenizer(["Ana has 38 pens. Ana sells 9. How many pens?", "start 38\nsub 9"], WINDOW)
    build_model(tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
