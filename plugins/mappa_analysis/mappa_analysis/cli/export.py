"""`mappa export`: write agents of a run as model folders, or their actions as data sets, for other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mappa_analysis.cli.export_dataset import DatasetArguments, dataset_options, write_dataset
from mappa_core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from mappa_core.store.checkpoint import Manifest


@click.command("export")
@click.argument("run", metavar="RUN[@best|@last|@N]")
@click.option(
    "--to",
    "form",
    type=click.Choice(["hf", "sft", "dpo", "kto"]),
    default="hf",
    show_default=True,
    help="Hugging Face model folders, or data in Parquet.",
)
@click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path), required=True, help="The folder that is written."
)
@click.option("--agent", "agents", metavar="NAME", multiple=True, help="Only this agent; may be repeated.")
@click.option("--merged", is_flag=True, help="hf: adapters together with the model that they belong to.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="hf: of the weights of whole models; that of the start model if not given.",
)
@dataset_options
def command(
    run: str, form: str, out: Path, agents: Sequence[str], merged: bool, dtype: str | None, arguments: DatasetArguments
) -> None:
    """Write the agents of a run as model folders (hf), or what they did as data for fine-tuning (sft, dpo, kto).

    hf: RUN may be a URL of checkpoints; the last one is taken if none is named. A `lora` policy becomes an adapter's
    folder unless --merged. Others: RUN is a run folder, DIR gets a Parquet file an agent in the columns that TRL reads.
    """
    if form == "hf":
        if given := arguments.given_options:
            raise ConfigError(f"{given}: that is for data sets, --to sft, dpo or kto")
        _export_models(run, out, agents, merged, dtype)
    elif merged or dtype is not None:
        raise ConfigError("--merged and --dtype are for models, --to hf")
    else:
        write_dataset(run, out, form, agents, arguments)


def _export_models(run: str, out: Path, agents: Sequence[str], merged: bool, dtype: str | None) -> None:
    from rich.console import Console

    from mappa_core.store.checkpoint import POLICIES
    from mappa_core.store.checkpoint_ref import resolve_checkpoint
    from mappa_engine.export import export

    named = resolve_checkpoint(run if "@" in run else f"{run}@last", root=Path("runs"))
    manifest = named.checkpoint.manifest
    chosen = _select_policies(manifest, agents, named.policy, run)
    for agent in chosen:
        if (out / agent).exists():
            raise RunError(f"{out / agent} exists already: choose another --out, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    for agent, policy in chosen.items():
        entry = manifest.policies[policy]
        export(
            named.checkpoint.path / POLICIES / policy,
            out / agent,
            model=entry.model,
            lora=entry.lora,
            merged=merged,
            dtype=dtype,
        )
        what = f"adapter for {entry.model}" if entry.lora is not None and not merged else "model"
        console.print(f"{agent}  {out / agent}  ({what})", markup=False, highlight=False, soft_wrap=True)


def _select_policies(manifest: Manifest, agents: Sequence[str], policy: str | None, run: str) -> dict[str, str]:
    """Select the policy of each requested agent."""
    if not manifest.policies:
        raise RunError(f"{run}: this checkpoint does not say which policies it holds, so none can be exported")
    for name in agents:
        if name not in manifest.agents:
            raise RunError(f"--agent {name}: {run} has no such agent; it has {', '.join(manifest.agents)}")
        if manifest.agents[name] not in manifest.policies:
            raise RunError(
                f"--agent {name}: its policy {manifest.agents[name]!r} was not trained, so it has no weights"
            )
    chosen = {
        agent: own
        for agent, own in manifest.agents.items()
        if own in manifest.policies and agent in (agents or manifest.agents) and policy in (None, own)
    }
    if not chosen:
        raise RunError(
            f"{run}: no agent of it has a trained policy {policy!r}; there are {', '.join(manifest.policies)}"
        )
    return chosen
