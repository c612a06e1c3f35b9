"""Which names the agents of a team may have: those that a verdict can tell from its own words, and from each other."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from mappa_core.errors import ConfigError
from mappa_core.records import BLAME_BESIDE_AGENTS
from mappa_core.redaction import MAX_NAME_LENGTH, clean_name, find_unseen

NOT_AGENTS = BLAME_BESIDE_AGENTS | {"none", "null", "tool"}
"""Words of verdicts, which no agent may be called."""


def describe_name_fault(names: Iterable[str]) -> str | None:
    """Describe what is wrong with the names of a team's agents; None if nothing is. Case, width, spaces and what is
    unseen make no difference: a reader of a verdict would not notice it."""
    seen: dict[str, str] = {}
    for name in dict.fromkeys(names):
        folded = _fold(name)
        if len(name) > MAX_NAME_LENGTH:
            return f"the name of an agent has {len(name):,} characters, and may have {MAX_NAME_LENGTH}"
        if not folded.strip(" _-"):
            return f"an agent has no name that could be read: {_quoted(name)}"
        if folded in NOT_AGENTS:
            words = ", ".join(sorted(NOT_AGENTS))
            return f"an agent is called {_quoted(name)}, which is a word of verdicts, as are {words}"
        if folded in seen:
            return f"nobody could tell the agents {_quoted(seen[folded])} and {_quoted(name)} apart in a verdict"
        seen[folded] = name
    return None


def check_agent_names(workflow: str, agents: Iterable[str]) -> None:
    """Raise ConfigError if the `agents` of the workflow of this name have names that a verdict could not hold."""
    if fault := describe_name_fault(agents):
        raise ConfigError(f"workflow.use={workflow}: {fault}; the workflow has to name its agents otherwise")


@lru_cache(maxsize=1024)
def _fold(name: str) -> str:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join("".join(sign for sign, unseen in find_unseen(folded) if not unseen or sign.isspace()).split())


def _quoted(name: str) -> str:
    return f"'{clean_name(name)}'"
