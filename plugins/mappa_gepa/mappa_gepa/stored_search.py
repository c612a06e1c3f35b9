"""Files of a search in its run folder: what it was started with, and what it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mappa.runs import PROMPT_ROUND_EVENT, RunReader
from mappa.sessions import ComposedConfig, format_scalar, format_yaml, require_trusted, with_origin, write_mark
from mappa_core import ConfigError, RunError
from mappa_core.codec import from_json, to_json
from mappa_core.files import damage_reported, read_text, write_file
from mappa_gepa.options import ImproveOptions

OPTIONS_NAME = "improve.json"
MAX_OPTIONS_BYTES = 4 << 20
CONFIG_NAME = "improved.yaml"
PROMPTS_NAME = "prompts"
LOG_NAME = "gepa.log"
IMPORTED = "imported"
"""The workflow of a run of `mappa import`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSearch:
    """What a search was started with. `weights`: folder of the checkpoint that its team plays with."""

    options: ImproveOptions
    weights: str | None = None

    def write(self, folder: Path) -> None:
        """Write it into the run folder, with a mark that this user wrote it."""
        text = to_json(self).decode()
        write_file(folder, OPTIONS_NAME, text)
        write_mark(folder / OPTIONS_NAME, text)

    @classmethod
    def read_trusted(cls, folder: Path, *, trust: bool = False) -> StoredSearch:
        """Read it from the run folder. Raises RunError if the folder holds no search, and UntrustedRun if the user
        neither wrote nor trusts it: the options of its proposer name hosts and keys."""
        path = folder / OPTIONS_NAME
        try:
            text = read_text(folder, OPTIONS_NAME, max_bytes=MAX_OPTIONS_BYTES)
            with damage_reported(path):
                search = from_json(cls, text)
        except RunError as error:
            raise RunError(f"{folder} holds no search of prompts that could go on: {error}") from error
        options = search.options
        named = (f"proposer={options.proposer}", *(f"proposer.{word}" for word in options.proposer_settings))
        require_trusted(path, text, (*named, f"weights={search.weights}"), trust=trust)
        return search


def check_playable(run: Path, composed: ComposedConfig) -> None:
    """Raise ConfigError if `composed` is the config of an imported run, which nobody can play."""
    if composed.config.workflow.use == IMPORTED:
        raise ConfigError(
            f"{run} was imported: its actions were recorded elsewhere, so its team cannot be played here. mappa advise "
            f"{run} without --rollouts reads its verdicts; workflow.use=NAME names a team that can be played"
        )


def checkpoint_prompts(reader: RunReader, iteration: int) -> tuple[str, ...]:
    """The prompts that a training's agents followed after `iteration` iterations, as `key=value`; none if it did not
    change them."""
    rounds = {event.body["iteration"]: event.body["prompts"] for event in reader.events(PROMPT_ROUND_EVENT)}
    last = max((done for done in rounds if done <= iteration), default=None)
    return () if last is None else tuple(agent_word(agent, "prompt", text) for agent, text in rounds[last].items())


def agent_word(agent: str, key: str, value: str) -> str:
    """A setting of an agent as `key=value`; where its name would be read as several keys, as one of all agents."""
    if "." in agent or "=" in agent:
        return f"agents={format_scalar({agent: {key: value}})}"
    return f"agents.{agent}.{key}={format_scalar(value)}"


def write_prompts(folder: Path, prompts: Mapping[str, str]) -> None:
    """Write prompts as a config file, to be laid over the recipe, and each as a Markdown file, in whose
    name the agent's is percent-encoded, as it may hold a slash."""
    agents = {agent: {"prompt": text} for agent, text in prompts.items()}
    write_file(folder, CONFIG_NAME, format_yaml(with_origin({"agents": agents}, "mappa improve")))
    for agent, text in prompts.items():
        write_file(folder, f"{PROMPTS_NAME}/{quote(agent, safe=' ')}.md", text)
