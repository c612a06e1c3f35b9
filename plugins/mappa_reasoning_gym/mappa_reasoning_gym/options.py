"""Options of the task source `reasoning-gym`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mappa_core import ConfigError


@dataclass
class ReasoningGymOptions:
    dataset: str = "???"
    """Name of a data set of the library, such as `chain_sum` or `gsm_symbolic`."""
    config: dict[str, Any] = field(default_factory=dict)
    """Parameters of the data set, such as `{min_terms: 2, max_terms: 3}`; those left out have the library's values."""
    train: int = 1024
    """Tasks to train on."""
    eval: int = 128
    """Held-out tasks."""
    seed: int = 0
    """Draws other tasks; which side a task is on depends on its text alone."""
    partial: bool = False
    """Count the library's partial marks, a share, instead of full marks alone: some are given for any answer."""
    suffix: str = ""
    """Text appended to every prompt."""

    def check(self) -> None:
        """Raise ConfigError if a value is invalid."""
        for name, count in (("train", self.train), ("eval", self.eval)):
            if count < 0:
                raise ConfigError(f"{name}: must not be negative, not {count}")
        for name in ("seed", "size"):
            if name in self.config:
                raise ConfigError(f"config: {name} follows from the options seed, train and eval; leave it out")
