"""Options of the plugin's offers. They are apart from the implementations, because every command loads the plugin, and
only some runs need pandas and scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mappa_core import ConfigError
from mappa_core.sandbox import SMALLEST_LIMIT


@dataclass
class TeamOptions:
    turns: int = 4
    """Actions of each agent; it may stop earlier, once its files are in order."""
    context: Literal["full", "partial"] = "full"
    """Each agent sees the last action of every agent before it, or only that of its predecessor."""
    prompts: str = "full"
    """full | tiny | a folder that holds data_engineer.md, modeler.md, analyst.md and results.md"""
    token_limit: int = 4096
    """Tokens that the prompts tell agents to stay within; what an action may really take is sampling.max_tokens."""
    output_chars: int = 8000
    """Characters of a program's stdout, and of its stderr, that agents are shown; more is cut in the middle."""

    def check(self) -> None:
        """Raise ConfigError if a value is invalid."""
        if self.turns < 1:
            raise ConfigError(f"turns: must be at least 1, not {self.turns}")
        if self.output_chars < SMALLEST_LIMIT:
            raise ConfigError(f"output_chars: must be at least {SMALLEST_LIMIT}, not {self.output_chars}")


@dataclass
class EmbeddedOptions:
    folder: str | None = None
    """Where tables and answers are kept, about 3 MB; None: mappa/dsbench in the user's cache folder."""
    train: int | None = None
    """Tasks to train on, spread evenly over the list; None: all."""
    eval: int | None = None
    """Held-out tasks, in the same way."""


@dataclass
class PublishedOptions:
    data: str
    """The folder into which DSBench's data archive was unpacked, or that holds its data_resplit and answers."""
    texts: list[str] | None = None
    """Files with the published texts of the tasks; None: dsbench_modeling_*.json beside the data. Tasks without a text
    are described in the plugin's own words."""
    tasks: list[str] | None = None
    """Names of the tasks to use, of both splits; None: all 72, of which all that DSBench itself has must be there."""
    folder: str | None = None
    """Where is kept what takes long to find out about large tables; None: mappa/dsbench in the user's cache folder."""
