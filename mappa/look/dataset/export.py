"""Exports a run's actions as files for fine-tuning elsewhere, in one pass over the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from mappa.config.compose import read_stored
from mappa.look.dataset.card import write_card
from mappa.look.dataset.examples import ExampleMaker, PromptFormatter
from mappa.look.dataset.parquet import ParquetSpool, require_parquet
from mappa.look.dataset.request import ExportRequest, ExportResult
from mappa.look.dataset.select import Filters, select_actions
from mappa.look.output_files import unique_file_name
from mappa.runs import RunReader
from mappa.session.policies import assign_policies
from mappa.store.folder import CONFIG
from mappa.store.team_record import TeamRecord
from mappa_core import ConfigError, RunError
from mappa_core.config.schema import RunConfig
from mappa_core.files import storage_errors
from mappa_core.plugins import did_you_mean
from mappa_core.tools.owned_folder import OwnedFolder


def export_dataset(run: Path, out: Path, request: ExportRequest) -> ExportResult:
    """Write the folder `out`: a Parquet file per agent, `dataset.json` and README.md. The folder appears atomically.
    Only what is recorded is read: no plugin of the run is needed.

    Raises:
        RunError: `run` is not a run, `out` exists, no action of the run matches the request, or the storage fails.
        ConfigError: the request is inconsistent.
    """
    require_parquet()
    config = read_stored(run / CONFIG).read()
    with RunReader(run) as reader:
        formatter = _prompt_formatter(reader.team, config, request.filters)
    make = request.example_maker(formatter)
    return _write_atomically(run, out, request, formatter, make, config)


def _write_atomically(
    run: Path, out: Path, request: ExportRequest, formatter: PromptFormatter, make: ExampleMaker, config: RunConfig
) -> ExportResult:
    """Write to a temporary folder, then rename it."""
    if out.exists():
        raise RunError(f"{out} exists already: choose another --out, or remove it")
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with closing(OwnedFolder(".export-", out.parent)) as own:
            aside = own.path / out.name
            aside.mkdir()
            exported = _write_examples(run, aside, out, request, formatter, make)
            write_card(aside, run, request, exported, config)
            aside.rename(out)
    return exported


def _prompt_formatter(team: TeamRecord, config: RunConfig, filters: Filters) -> PromptFormatter:
    """The prompt formatter of a run. Raises ConfigError if `filters` names an agent that the run does not have."""
    agents = tuple(team.agents)
    for name in filters.agents:
        if name not in agents:
            raise ConfigError(f"--agent {name}: the run has no such agent.{did_you_mean(name, agents)}")
    kwargs = {agent: _template_kwargs(config, policy) for agent, policy in assign_policies(config, agents).items()}
    return PromptFormatter(tools=team.tools, template_kwargs=kwargs)


def _template_kwargs(config: RunConfig, policy: str) -> Mapping[str, Any]:
    section = config.policies.get(policy) or config.policies.get("default")
    return {} if section is None or section.kind == "api" else section.template_kwargs


def _write_examples(
    run: Path, aside: Path, out: Path, request: ExportRequest, formatter: PromptFormatter, make: ExampleMaker
) -> ExportResult:
    left_out: Counter[tuple[str, str]] = Counter()
    unknown: Counter[str] = Counter()
    spools: dict[str, ParquetSpool] = {}
    names: dict[str, str] = {}
    with RunReader(run) as reader:
        for group in select_actions(reader, request.filters, left_out):
            unknown.update(name for one in group for name in formatter.unknown_tools(one))
            for agent, example in make(group, left_out):
                if agent not in spools:
                    names[agent] = unique_file_name(agent, names.values())
                    spools[agent] = ParquetSpool(aside / f"{names[agent]}.parquet")
                if not spools[agent].add(example):
                    left_out[agent, "text that UTF-8 cannot hold"] += 1
    reasons: dict[str, dict[str, int]] = defaultdict(dict)
    for (agent, why), count in sorted(left_out.items()):
        if count:
            reasons[agent][why] = count
    examples = {agent: spool.count for agent, spool in sorted(spools.items()) if spool.count}
    if not examples:
        said = "; ".join(f"{agent}: {count} {why}" for agent, one in reasons.items() for why, count in one.items())
        raise RunError(f"{run}: nothing to export. Left out: {said or 'nothing, as there are no such actions'}")
    for spool in spools.values():
        spool.close()
    files = {agent: f"{names[agent]}.parquet" for agent in examples}
    return ExportResult(folder=out, examples=examples, files=files, left_out=reasons, unknown_tools=unknown)
