"""`mappa eval`: play and grade tasks without training."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mappa_core.cli.options import Asked, load_registry, recipe_options
from mappa_core.config.compose import restore
from mappa_core.errors import ConfigError

if TYPE_CHECKING:
    from mappa_core.evaluation.heldout import Evaluation
    from mappa_core.evaluation.once import Evaluated


@click.command("eval")
@recipe_options
@click.option("--run", "run", metavar="RUN", type=click.Path(path_type=Path), help="Evaluate the run in this folder.")
@click.option("--checkpoint", metavar="N", type=int, help="Its checkpoint after N iterations; the last if not given.")
@click.option("--pass-at", metavar="K", type=int, multiple=True, help="Also print pass@K; needs eval.samples >= K.")
@click.option("--avg-at", metavar="K", type=int, multiple=True, help="Also print avg@K; needs eval.samples >= K.")
@click.option("--majority-at", metavar="K", type=int, multiple=True, help="Also print majority@K of final answers.")
@click.option("--quiet", is_flag=True, help="Print only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(
    asked: Asked,
    run: Path | None,
    checkpoint: int | None,
    pass_at: Sequence[int],
    avg_at: Sequence[int],
    majority_at: Sequence[int],
    quiet: bool,
    as_json: bool,
) -> None:
    """Grade a recipe's start models, or a run's checkpoint, on held-out tasks.

    Of K samples of a task: --pass-at, that any is right; --avg-at, their mean; --majority-at, that the most frequent
    answer is right. Fair counts a trajectory that the team did not finish as wrong, raw leaves it out.
    """
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
    asked_at = {"pass": pass_at, "avg": avg_at, "majority": majority_at}
    for what, sizes in asked_at.items():
        if not all(1 <= k <= composed.config.eval.samples for k in sizes):
            raise ConfigError(f"--{what}-at {max(sizes)} needs eval.samples={max(sizes)} or more, and to be 1 or more")
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
        click.echo(msgspec.json.encode(as_document(evaluated, asked_at)).decode())
        return
    console = Console()
    show_evaluation(console, evaluated.evaluation)
    for what, sizes in asked_at.items():
        for k in sizes:
            console.print(_several(evaluated.evaluation, what, k), highlight=False)
    console.print(f"trajectories: mappa runs show {evaluated.folder}", soft_wrap=True, highlight=False)


def _several(evaluation: Evaluation, what: str, k: int) -> str:
    """A line on several samples of a problem."""
    fair, raw = at(evaluation, what, k), at(evaluation.raw, what, k)
    if what == "majority" and evaluation.answers is None:
        return f"{what}@{k} - (no final answers of this workflow can be compared)"
    return f"{what}@{k} {'-' if fair is None else f'{fair:.1%}'} fair, {'-' if raw is None else f'{raw:.1%}'} raw"


def at(evaluation: Evaluation, what: str, k: int) -> float | None:
    """pass@k, avg@k or majority@k; None where no problem has k samples, or there are no answers to count."""
    try:
        found: float | None = getattr(evaluation, f"{what}_at")(k)
    except ValueError:
        return None
    return found


def as_document(evaluated: Evaluated, asked_at: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """An evaluation as JSON values; shares are 0-1."""
    from mappa_core.cli import results

    evaluation = evaluated.evaluation
    return {
        "folder": str(evaluated.folder),
        "metric": evaluation.metric,
        "iteration": evaluation.iteration,
        "rollouts": int(evaluation.values.size),
        **{f"{what}_at": {str(k): at(evaluation, what, k) for k in sizes} for what, sizes in asked_at.items()},
        "raw": {f"{what}_at": {str(k): at(evaluation.raw, what, k) for k in sizes} for what, sizes in asked_at.items()},
        "not_finished": dict(evaluation.failures),
        **results.as_document(evaluation),
    }


def _refuse_other_choices(asked: Asked) -> None:
    if asked.plugin or asked.recipe or asked.config_files:
        raise ConfigError("--run takes the run's own config: leave out --plugin, --recipe and --config")
