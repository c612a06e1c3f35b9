"""`mappa eval`: play and grade tasks without training."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mappa_core.cli.options import Asked, load_registry, recipe_options
from mappa_core.config.compose import restore
from mappa_core.errors import ConfigError

if TYPE_CHECKING:
    from mappa_core.evaluation.once import Evaluated


@click.command("eval")
@recipe_options
@click.option("--run", "run", metavar="RUN", type=click.Path(path_type=Path), help="Evaluate the run in this folder.")
@click.option("--checkpoint", metavar="N", type=int, help="Its checkpoint after N iterations; the last if not given.")
@click.option("--pass-at", metavar="K", type=int, multiple=True, help="Also print pass@K; needs eval.samples >= K.")
@click.option("--quiet", is_flag=True, help="Print only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(
    asked: Asked, run: Path | None, checkpoint: int | None, pass_at: Sequence[int], quiet: bool, as_json: bool
) -> None:
    """Grade a recipe's start models, or a run's checkpoint, on held-out tasks."""
    from rich.console import Console

    from mappa_core.cli.asking import announce, announce_sandboxes
    from mappa_core.cli.progress import counting
    from mappa_core.cli.results import show_evaluation
    from mappa_core.evaluation.once import evaluate_once
    from mappa_core.store.folder import CONFIG, checkpoints_of

    registry = load_registry()
    loaded = None
    if run is None:
        if checkpoint is not None:
            raise ConfigError("--checkpoint N is one of a run: name it with --run RUN")
        composed = asked.compose(registry)
    else:
        _refuse_other_choices(asked)
        composed = restore(registry, run / CONFIG, ("run.name=null", *asked.words))
        checkpoints = checkpoints_of(run, composed.config.checkpoint.url)
        loaded = checkpoints.last() if checkpoint is None else checkpoints.load(checkpoint)
    if any(k > composed.config.eval.samples for k in pass_at):
        raise ConfigError(f"--pass-at {max(pass_at)} needs eval.samples={max(pass_at)} or more")
    errors = Console(stderr=True)
    with counting(errors, quiet=quiet or as_json) as progress:
        evaluated = asyncio.run(
            evaluate_once(
                composed,
                registry,
                checkpoint=loaded,
                asking=lambda providers: announce(errors, providers),
                sandboxed=lambda sandboxes: announce_sandboxes(errors, sandboxes, quiet=quiet or as_json),
                starting=progress.starting,
                finished=progress.rollout_finished,
            )
        )
    if as_json:
        click.echo(msgspec.json.encode(as_document(evaluated, pass_at)).decode())
        return
    console = Console()
    show_evaluation(console, evaluated.evaluation)
    for k in pass_at:
        console.print(f"pass@{k} {evaluated.evaluation.pass_at(k):.1%}", highlight=False)
    console.print(f"trajectories: mappa runs show {evaluated.folder}", soft_wrap=True, highlight=False)


def as_document(evaluated: Evaluated, pass_at: Sequence[int]) -> dict[str, Any]:
    """An evaluation as JSON values; shares are 0-1."""
    from mappa_core.cli import results

    evaluation = evaluated.evaluation
    return {
        "folder": str(evaluated.folder),
        "metric": evaluation.metric,
        "iteration": evaluation.iteration,
        "rollouts": int(evaluation.values.size),
        "pass_at": {str(k): evaluation.pass_at(k) for k in pass_at},
        "not_finished": dict(evaluation.failures),
        **results.as_document(evaluation),
    }


def _refuse_other_choices(asked: Asked) -> None:
    if asked.plugin or asked.recipe or asked.config_files:
        raise ConfigError("--run takes the run's own config: leave out --plugin, --recipe and --config")
