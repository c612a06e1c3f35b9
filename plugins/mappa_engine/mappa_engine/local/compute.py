"""How the engine `local` computes, chosen by the size of its models where options leave it open."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mappa_core import RunError
from mappa_core.files import has_file, read_text, write_file
from mappa_core.safe_json import parse_untrusted_json
from mappa_engine.memory_estimate import BYTES_PER_NUMBER
from mappa_engine.model_shape import is_large
from mappa_engine.node import bfloat16_instructions, usable_cores

COMPUTE_FILE = "compute.json"
_MAX_BYTES = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings:
    """What all policies of an engine are computed with. The order of sums depends on it, so a checkpoint keeps it."""

    threads: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.threads} {'thread' if self.threads == 1 else 'threads'}, {self.dtype}"

    def write(self, folder: Path) -> None:
        """Write it into the folder of a checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder, COMPUTE_FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> ComputeSettings | None:
        """Read it from the folder of a checkpoint; None where an engine of another kind wrote that. Raises RunError if
        the file is damaged."""
        if not has_file(folder, COMPUTE_FILE):
            return None
        try:
            stored = parse_untrusted_json(read_text(folder, COMPUTE_FILE, max_bytes=_MAX_BYTES))
            threads, dtype = stored["threads"], stored["dtype"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{folder / COMPUTE_FILE} is damaged: {error}") from error
        if type(threads) is not int or threads < 1:
            raise RunError(f"{folder / COMPUTE_FILE} is damaged: threads is {threads!r}, not a number from 1")
        if dtype not in BYTES_PER_NUMBER:
            raise RunError(f"{folder / COMPUTE_FILE} is damaged: dtype is {dtype!r}")
        return cls(threads=threads, dtype=dtype)


def choose_threads(weights: int) -> int:
    """Return how many threads compute a model of so many weights."""
    return usable_cores() if is_large(weights) else 1


def tries_bfloat16(weights: int) -> bool:
    """Whether a model of so many weights is worth a trial of bfloat16 on this processor."""
    return is_large(weights) and bool(bfloat16_instructions())


def emulates_bfloat16(weights: int) -> bool:
    """Whether this processor is known to have no bfloat16 of its own, where a model of so many weights would need it:
    a product of matrices then takes up to sixty times as long as in float32."""
    return is_large(weights) and bfloat16_instructions() == ()
