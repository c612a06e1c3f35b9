"""Options of the plugin's offers. They are apart from the implementations, because every command loads the plugin, and
only some runs need pandas and scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TeamOptions:
    turns: int = 4
    """Actions of each agent; it may stop earlier, once its files are in order."""
    context: str = "full"
    """full: each agent sees the last action of every agent before it | partial: only that of its predecessor"""
    prompts: str = "full"
    """full | tiny | a folder that holds data_engineer.md, modeler.md, analyst.md and results.md"""
    token_limit: int = 4096
    """Tokens that the prompts tell agents to stay within; what an action may really take is sampling.max_tokens."""
    output_chars: int = 8000
    """Characters of a program's stdout, and of its stderr, that agents are shown; more is cut in the middle."""


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
