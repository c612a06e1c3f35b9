"""The config of an imported run: its agents and their models, as the logs name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa.config.compose import ComposedConfig, read_stored
from mappa.config.yaml_io import format_yaml
from mappa.look.importing.log_mapping import LoggedTrajectory
from mappa.look.importing.offers import IMPORT_RECIPE, ImportedWorkflow
from mappa.store.folder import RunFolder
from mappa.store.team_record import TeamRecord
from mappa_core.config.layers import with_origin
from mappa_core.plugins import Registry

CORE = "core"
"""The plugin that an imported run names."""
TASKS_FILE = "tasks.jsonl"
UNKNOWN_MODEL = "unknown"
"""The model of an agent for which the log names none."""


def resolve_config(registry: Registry, folder: RunFolder) -> ComposedConfig:
    """The config of a run that an import has just written, or whose maker is trusted."""
    return read_stored(folder.path).resolve(registry)


def write_config(registry: Registry, folder: RunFolder, config: str) -> None:
    """Write the config with all defaults, and record the team."""
    folder.write_config(config)
    composed = resolve_config(registry, folder)
    folder.write_config(composed.to_yaml())
    workflow = ImportedWorkflow(composed.config.workflow.options)
    folder.store.record_team(TeamRecord(agents=workflow.agents, metric=workflow.metric))


def models_by_agent(logs: Sequence[LoggedTrajectory]) -> dict[str, str]:
    """The model of each agent according to the log; the last one named counts."""
    return {act.agent: act.model for log in logs for act in log.acts if act.model is not None}


def build_config(folder: Path, briefs: Mapping[str, str], models: Mapping[str, str], *, origin: str) -> str:
    """The config of a run that can be judged but not rolled out: its policies are frozen and have no weights."""
    tasks = {"path": str(folder / TASKS_FILE), "stratum": "stratum"}
    settings = {
        "tasks": {"use": "file", "options": tasks},
        "workflow": {"use": IMPORT_RECIPE, "options": {"agents": dict(briefs)}},
        "coach": {"use": IMPORT_RECIPE},
        "policies": {agent: {"kind": "frozen", "model": models.get(agent, UNKNOWN_MODEL)} for agent in briefs},
    }
    return f"recipe: {CORE}/{IMPORT_RECIPE}\n" + format_yaml(with_origin(settings, f"mappa import {origin}"))
