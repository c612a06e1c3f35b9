"""`mappa eval`: run and grade tasks without training."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from mappa.cli.common_options import json_option, quiet_option
from mappa.cli.options import ConfigArguments, load_registry, recipe_options, trust_option
from mappa.config.yaml_io import format_scalar
from mappa_core.errors import ConfigError
from mappa_core.redaction import clean_line

if TYPE_CHECKING:
    from mappa.config.compose import ComposedConfig
    from mappa.evaluation.heldout import Evaluation
    from mappa.evaluation.standalone import StandaloneEvaluation
    from mappa.store.checkpoint import Checkpoint
    from mappa_core.plugins import Registry


@click.command("eval")
@recipe_options
@click.option("--run", "run", metavar="RUN", type=click.Path(path_type=Path), help="Evaluate the run in this folder.")
@trust_option
@click.option("--checkpoint", metavar="N", type=int, help="Its checkpoint after N iterations; the last one by default.")
@click.option("--pass-at", metavar="K", type=int, multiple=True, help="Also print pass@K; needs eval.samples >= K.")
@click.option("--avg-at", metavar="K", type=int, multiple=True, help="Also print avg@K; needs eval.samples >= K.")
@click.option("--majority-at", metavar="K", type=int, multiple=True, help="Also print majority@K of final answers.")
@click.option(
    "--probe",
    "probed",
    metavar="N",
    type=click.IntRange(min=1),
    help="Play N training tasks as training does, and say whether there is something to learn.",
)
@quiet_option
@json_option
def command(
    arguments: ConfigArguments,
    run: Path | None,
    trust: bool,
    checkpoint: int | None,
    pass_at: Sequence[int],
    avg_at: Sequence[int],
    majority_at: Sequence[int],
    probed: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Grade start models, or a run's checkpoint, on held-out tasks.

    Without --run the start models of the recipe are graded. Over K samples of a task, pass@K is the probability that
    any is right, avg@K their mean, majority@K the probability that the most frequent answer is right. Fair counts a
    trajectory that was not finished as wrong; raw leaves it out.

    --probe N asks before training whether a team can learn at all: it plays N tasks of the training split with the
    coach, the temperature and the samples of a training, and says of the team and of each agent how often it is right
    and whether siblings are rewarded differently.
    """
    from mappa.cli.announce import announce_providers, announce_sandboxes
    from mappa.cli.console import Console
    from mappa.cli.probe_tables import show_probe
    from mappa.cli.progress import rollout_bar
    from mappa.cli.result_tables import show_evaluation
    from mappa.evaluation.standalone import evaluate_standalone

    registry, composed, loaded = _choose_config(arguments, run, checkpoint, probed, trust=trust)
    sizes_by_metric = {"pass": pass_at, "avg": avg_at, "majority": majority_at}
    _check_sizes(sizes_by_metric, composed.config.eval.samples)
    errors = Console(stderr=True)
    with rollout_bar(errors, quiet=quiet or as_json) as progress:
        evaluated = asyncio.run(
            evaluate_standalone(
                composed,
                registry,
                purpose="eval" if probed is None else "probe",
                probing=probed is not None,
                checkpoint=loaded,
                on_providers=lambda providers: announce_providers(errors, providers),
                on_sandboxes=lambda sandboxes: announce_sandboxes(errors, sandboxes, quiet=quiet or as_json),
                on_start=progress.start,
                on_trajectory=progress.on_rollout_end,
            )
        )
    if as_json:
        click.echo(msgspec.json.encode(standalone_evaluation_json(evaluated, sizes_by_metric)).decode())
        return
    console = Console()
    if evaluated.probe is None:
        show_evaluation(console, evaluated.evaluation)
    else:
        show_probe(console, evaluated.evaluation, evaluated.probe)
    for what, sizes in sizes_by_metric.items():
        for k in sizes:
            console.print(clean_line(_samples_line(evaluated.evaluation, what, k)), highlight=False, markup=False)
    console.print(f"trajectories: mappa runs show {evaluated.folder}", soft_wrap=True, highlight=False, markup=False)


def _choose_config(
    arguments: ConfigArguments, run: Path | None, checkpoint: int | None, probed: int | None, *, trust: bool
) -> tuple[Registry, ComposedConfig, Checkpoint | None]:
    """The config that is played, with the plugins that it needs: of a recipe or, with one of its checkpoints, of `run`;
    with the settings of a probe where one is asked for."""
    from mappa.session.trust import add_own_plugin
    from mappa.store.folder import CONFIG

    registry = load_registry()
    if run is None:
        if checkpoint is not None:
            raise ConfigError("--checkpoint N is one of a run: name it with --run RUN")
        composed = arguments.compose(registry)
        if probed is not None:
            composed = arguments.compose(registry, *probe_words(composed, probed))
        return registry, composed, None
    if arguments.chooses_config:
        raise ConfigError("--run takes the run's own config: leave out --plugin, --recipe and --config")
    registry = add_own_plugin(registry, run / CONFIG, trust=trust)
    composed, loaded = _restore_checkpoint(registry, run, checkpoint, arguments.words, trust=trust)
    if probed is not None:
        words = (*probe_words(composed, probed), *arguments.words)
        composed, loaded = _restore_checkpoint(registry, run, checkpoint, words, trust=trust)
    return registry, composed, loaded


def probe_words(composed: ComposedConfig, tasks: int) -> tuple[str, ...]:
    """Settings by which an evaluation plays `tasks` training tasks as a training of this config does."""
    config = composed.config
    return (
        "eval.split=train",
        f"eval.problems={tasks}",
        # One sample has no sibling to compare with.
        f"eval.samples={max(2, config.train.samples)}",
        f"eval.temperature={config.sampling.temperature}",
        "eval.coach=true",
        "checkpoint.best=false",
    )


def _restore_checkpoint(
    registry: Registry, run: Path, number: int | None, words: Sequence[str], *, trust: bool
) -> tuple[ComposedConfig, Checkpoint]:
    """Restore a run's config with `words`, and one of its checkpoints, with the prompts of then if these changed."""
    from mappa.session.trust import restore_trusted
    from mappa.store.folder import CONFIG, open_checkpoints

    words = ("run.name=null", *words)
    composed = restore_trusted(registry, run / CONFIG, words, trust=trust)
    checkpoints = open_checkpoints(run, composed.config.checkpoint.url)
    loaded = checkpoints.load_latest() if number is None else checkpoints.load(number)
    if composed.config.prompts is not None:
        followed = format_scalar({agent: {"prompt": text} for agent, text in loaded.manifest.prompts.items()})
        composed = restore_trusted(registry, run / CONFIG, words, recorded=(f"agents={followed}",), trust=trust)
    return composed, loaded


def _check_sizes(sizes_by_metric: Mapping[str, Sequence[int]], samples: int) -> None:
    for what, sizes in sizes_by_metric.items():
        for k in (k for k in sizes if not 1 <= k <= samples):
            raise ConfigError(f"--{what}-at {k} " + (f"needs eval.samples={k} or more" if k > 0 else "is less than 1"))


def _samples_line(evaluation: Evaluation, what: str, k: int) -> str:
    fair, raw = metric_at(evaluation, what, k), metric_at(evaluation.raw, what, k)
    if what == "majority" and evaluation.answers is None:
        return f"{what}@{k} - (no final answers of this workflow can be compared)"
    return f"{what}@{k} {'-' if fair is None else f'{fair:.1%}'} fair, {'-' if raw is None else f'{raw:.1%}'} raw"


def metric_at(evaluation: Evaluation, what: str, k: int) -> float | None:
    """pass@k, avg@k or majority@k; None if no problem has k samples, or there are no answers to count."""
    with suppress(ValueError):
        return cast("float | None", getattr(evaluation, f"{what}_at")(k))
    return None


def standalone_evaluation_json(
    evaluated: StandaloneEvaluation, sizes_by_metric: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """An evaluation as JSON values; shares are 0-1."""
    from mappa.cli import result_tables
    from mappa.cli.probe_tables import probe_json

    def at_sizes(part: Evaluation) -> dict[str, Any]:
        sizes = sizes_by_metric.items()
        return {f"{what}_at": {str(k): metric_at(part, what, k) for k in numbers} for what, numbers in sizes}

    evaluation = evaluated.evaluation
    return {
        "folder": str(evaluated.folder),
        "metric": evaluation.metric,
        "iteration": evaluation.iteration,
        "rollouts": int(evaluation.values.size),
        **at_sizes(evaluation),
        "raw": at_sizes(evaluation.raw),
        "not_finished": dict(evaluation.failures),
        **result_tables.evaluation_json(evaluation),
        **({} if evaluated.probe is None else {"probe": probe_json(evaluated.probe)}),
    }
