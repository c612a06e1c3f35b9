"""A run's actions as files for fine-tuning elsewhere: the one pass over the store."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_hex

from mappa_core.config.compose import restore
from mappa_core.config.schema import RunConfig
from mappa_core.errors import ConfigError, RunError
from mappa_core.plugins import Registry, choices
from mappa_core.protocols import Workflow
from mappa_core.session.kit import build_tools
from mappa_core.session.policies import policies_of, template_kwargs
from mappa_core.store.files import storage_errors
from mappa_core.store.folder import CONFIG
from mappa_core.store.reader import Reader
from mappa_core.studies.dataset.card import write_card
from mappa_core.studies.dataset.choosing import Filters, judged
from mappa_core.studies.dataset.examples import Make, Sight
from mappa_core.studies.dataset.order import Exported, Order
from mappa_core.studies.dataset.writing import Spool, require_parquet


async def export_dataset(registry: Registry, run: Path, out: Path, order: Order) -> Exported:
    """Write the folder `out`: a Parquet file per agent, `dataset.json` and README.md. It appears whole or not at all.

    Raises:
        RunError: `run` is no run, `out` exists, nothing of the run is what was ordered, or the storage fails.
        ConfigError, PluginError: the order makes no sense, or the run's parts are not installed.
    """
    require_parquet()
    config = restore(registry, run / CONFIG).config
    make = order.maker(await _sight(registry, config, order.filters))
    return _whole(run, out, order, make, config)


def _whole(run: Path, out: Path, order: Order, make: Make, config: RunConfig) -> Exported:
    """Write the folder aside, then rename it."""
    if out.exists():
        raise RunError(f"{out} exists already: choose another --out, or remove it")
    aside = out.with_name(f".{out.name}.{token_hex(4)}")
    with storage_errors(out):
        aside.mkdir(parents=True)
        try:
            exported = _written(run, aside, out, order, make)
            write_card(aside, run, order, exported, config)
            aside.rename(out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return exported


async def _sight(registry: Registry, config: RunConfig, filters: Filters) -> Sight:
    """What the agents of a run see. Raises ConfigError where `filters` names one that it does not have."""
    async with AsyncExitStack() as stack:
        workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
        stack.push_async_callback(workflow.close)
        agents = tuple(workflow.agents)
        for name in filters.agents:
            if name not in agents:
                raise ConfigError(f"--agent {name}: the run has no such agent.{choices(name, agents)}")
        kit = await build_tools(config, registry, stack)
        specs = {name: tool.spec for name, tool in kit.tools.items()}
    kwargs = {agent: template_kwargs(config, policy) for agent, policy in policies_of(config, agents).items()}
    return Sight(tools=specs, template_kwargs=kwargs)


def _written(run: Path, aside: Path, out: Path, order: Order, make: Make) -> Exported:
    left_out: Counter[tuple[str, str]] = Counter()
    spools: dict[str, Spool] = {}
    with Reader(run) as reader:
        for group in judged(reader, order.filters, left_out):
            for agent, example in make(group, left_out):
                spool = spools.get(agent) or spools.setdefault(agent, Spool(aside / f"{agent}.parquet"))
                if not spool.add(example):
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
    return Exported(folder=out, examples=examples, left_out=reasons)
