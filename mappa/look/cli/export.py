"""`mappa export`: write agents of a run as model folders or their actions as data sets, for other libraries, and
verdicts back to the tracer that the run was made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mappa.look.cli.export_dataset import DatasetArguments, dataset_options, write_dataset
from mappa_core import ConfigError, RunError
from mappa_core.redaction import clean_name

if TYPE_CHECKING:
    from mappa.store.checkpoint_ref import ResolvedCheckpoint
    from mappa_core import Engine

PROMPT_NAME = "prompt.md"
FORMS = ("hf", "sft", "dpo", "kto")
TRACERS = ("phoenix", "langfuse", "otel")


@click.command("export")
@click.argument("run", metavar="RUN[@best|@last|@N]", type=click.Path())
@click.option(
    "--to",
    "form",
    metavar="|".join((*FORMS, *TRACERS, "URL")),
    default="hf",
    show_default=True,
    help="Hugging Face model folders, data in Parquet, or the tracer that the run was made of.",
)
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="hf, sft, dpo, kto: what is written.")
@click.option("--agent", "agents", metavar="NAME", multiple=True, help="Only this agent; may be repeated.")
@click.option("--merged", is_flag=True, help="hf: adapters together with the model that they belong to.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="hf: of the weights of whole models; that of the start model by default.",
)
@click.option(
    "--certificate",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="phoenix, langfuse, otel: what `mappa coach eval --json` says of the coach.",
)
@dataset_options
def command(
    run: str,
    form: str,
    out: Path | None,
    agents: Sequence[str],
    merged: bool,
    dtype: str | None,
    certificate: Path | None,
    arguments: DatasetArguments,
) -> None:
    """Write a run's agents as models, actions as data, or verdicts to a tracer.

    hf: folders of models. RUN may be a URL of checkpoints; the last one is taken if none is named. A `lora` policy
    becomes an adapter's folder unless --merged; prompt.md in it is what the agent acted by. sft, dpo, kto: data for
    fine-tuning. RUN is a run folder, DIR gets a Parquet file an agent in the columns that TRL reads.

    phoenix, langfuse, otel: verdicts and labels of an imported run go to the spans that they are about, and whom a
    coach blames to the trace, with who judged. The server is that of the environment, or of a URL:
    phoenix://localhost:6006.
    """
    if form in TRACERS or "://" in form:
        if given := arguments.given_options or ("--agent" if agents else "") or ("--out" if out else ""):
            raise ConfigError(f"{given}: verdicts go to a tracer whole: leave it out")
        if merged or dtype is not None:
            raise ConfigError("--merged and --dtype are for models, --to hf")
        _write_verdicts(Path(run), form, certificate)
        return
    if form not in FORMS:
        raise ConfigError(f"--to {form}: choose {', '.join((*FORMS, *TRACERS))}, or the URL of a tracer")
    if certificate is not None:
        raise ConfigError(f"--certificate goes with verdicts, --to {', '.join(TRACERS)}")
    if out is None:
        raise ConfigError(f"--to {form} writes a folder: name it with --out")
    if form == "hf":
        if given := arguments.given_options:
            raise ConfigError(f"{given}: that is for data sets, --to sft, dpo or kto")
        _export_models(run, out, agents, merged, dtype)
    elif merged or dtype is not None:
        raise ConfigError("--merged and --dtype are for models, --to hf")
    else:
        write_dataset(run, out, form, agents, arguments)


def _write_verdicts(run: Path, place: str, certificate: Path | None) -> None:
    from mappa.cli.console import Console
    from mappa.cli.formats import format_count
    from mappa.look.tracers.judgements import read_judgements
    from mappa.look.tracers.write_back import open_receiver

    found = read_judgements(run, certificate=certificate)
    receiver = open_receiver(place)
    receiver.write(found.judgements)
    said = format_count(len(found.judgements), "annotation")
    silent = f"; {found.silent:,} verdicts say nothing and were left out" if found.silent else ""
    Console().print(
        f"{said} on {format_count(found.traces, 'trace')} of {receiver.name}{silent}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _export_models(run: str, out: Path, agents: Sequence[str], merged: bool, dtype: str | None) -> None:
    from mappa.cli.console import Console
    from mappa.look.output_files import unique_file_name
    from mappa.store.checkpoint_ref import resolve_checkpoint
    from mappa_core.engine import PolicySpec
    from mappa_core.files import storage_errors

    named = resolve_checkpoint(run if "@" in run else f"{run}@last", root=Path("runs"))
    chosen = _select_policies(named, agents, run)
    folders: dict[str, Path] = {}
    for agent in chosen:
        folders[agent] = out / unique_file_name(agent, [folder.name for folder in folders.values()])
        if folders[agent].exists():
            raise RunError(f"{folders[agent]} exists already: choose another --out, or remove it")
    engine = _build_engine(named)
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    console = Console()
    for agent, policy in chosen.items():
        entry = named.checkpoint.manifest.policies[policy]
        spec = PolicySpec(name=policy, model=entry.model, kind=entry.kind, lora=entry.lora)
        engine.export(spec, named.weights(policy), folders[agent], merged=merged, dtype=dtype)
        if agent in named.checkpoint.manifest.prompts:
            (folders[agent] / PROMPT_NAME).write_text(named.checkpoint.manifest.prompts[agent], encoding="utf-8")
        what = f"adapter for {entry.model}" if entry.lora is not None and not merged else "model"
        console.print(f"{clean_name(agent)}  {folders[agent]}  ({what})", markup=False, highlight=False, soft_wrap=True)


def _build_engine(named: ResolvedCheckpoint) -> Engine:
    """Build the engine of the run by its name, without opening it. Raises PluginError if it is not installed."""
    from mappa.cli.options import load_registry
    from mappa_core.config.schema import RunConfig

    use = named.settings.at("engine.use")
    # With default options: those of the run may name hosts and folders, and a checkpoint is read without them.
    engine: Engine = load_registry().build("engines", RunConfig().engine.use if use is None else str(use.plain))
    return engine


def _select_policies(named: ResolvedCheckpoint, agents: Sequence[str], run: str) -> dict[str, str]:
    """Select the policy of each requested agent."""
    manifest, policy = named.checkpoint.manifest, named.policy
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
