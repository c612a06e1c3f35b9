"""`mappa coach eval`: hold coaches against what is known of actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from mappa.cli.common_options import json_option, quiet_option
from mappa.cli.console import Console, echo
from mappa.cli.options import file_option, load_registry, trust_option
from mappa.look.cli.label_options import label_options
from mappa_core import ConfigError
from mappa_core.plugins import Registry

if TYPE_CHECKING:
    from mappa.look.cli.coach_choices import CoachChoice
    from mappa.look.cli.verdict_tables import VerdictBar
    from mappa.look.coach_eval.batch_judge import JudgingLimits
    from mappa.look.coach_eval.blame import BlameEvaluation
    from mappa.look.coach_eval.evaluate import CoachEvaluation
    from mappa.look.coach_eval.evaluate_attribution import AttributionEvaluation
    from mappa.look.coach_eval.labelled_actions import LabelledSet, LabelSource
    from mappa.look.coach_eval.labelled_runs import Benchmark, LabelledRuns
    from mappa.look.coach_eval.metrics import VerdictCounts
    from mappa.look.importing import LogMapping

Against = Literal["outcome", "counterfactual", "labels"]
POSITIVE_SECONDS = click.FloatRange(min=0.0, min_open=True)
AT_LEAST_ONE = click.IntRange(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """The options of the command; `mapping` is of those that say what the keys of labels mean."""

    coaches: Sequence[str]
    judges: Path | None
    jury: Path | None
    unseen: bool
    runs: Sequence[Path]
    file: Path | None
    benchmark: Benchmark | None
    data: Sequence[Path]
    agents: Sequence[str]
    against: Against | None
    truth: Literal["hidden", "shown", "both"]
    ask: Literal["together", "each"]
    labeller: str | None
    labels: Sequence[str]
    mapping: LogMapping
    repeats: int
    cassette: Path | None
    limit: int | None
    concurrency: int
    timeout: float
    save: Path | None
    trust: bool
    quiet: bool
    as_json: bool
    settings: Sequence[str]

    def check(self) -> None:
        """Raises ConfigError for options that do not go together."""
        if sum(map(bool, (self.runs, self.file, self.benchmark))) != 1:
            raise ConfigError(
                "name what is labelled: --run RUN (one or more), --on who-and-when|agent-process-bench with --data "
                "FILE, or --file FILE"
            )
        if bool(self.benchmark) != bool(self.data):
            raise ConfigError("--on names a public set and --data its files: give both")
        if self.labels and not self.benchmark:
            raise ConfigError("--labels stand beside --on NAME --data FILE; those of a run come in by mappa import")
        if not self.coaches and self.judges is None and self.jury is None:
            raise ConfigError("name who is to be certified: --coach OFFER, --judges FILE of verdicts, or --jury FILE")
        if self.against == "counterfactual" and self.repeats > 1:
            raise ConfigError("--against counterfactual compares one verdict of each action: leave --repeats out")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluated:
    """An evaluation as JSON, what prints it, and the verdicts of each coach."""

    document: str
    show: Callable[[Console], None]
    counts: Sequence[VerdictCounts]


@click.command("eval")
@click.option("--coach", "coaches", metavar="[NAME=]OFFER", multiple=True, help="A coach; may be repeated.")
@click.option(
    "--judges", metavar="FILE", type=click.Path(path_type=Path), help="Recorded verdicts; each judge is a coach."
)
@click.option("--jury", metavar="FILE", type=click.Path(path_type=Path), help="What mappa coach calibrate wrote.")
@click.option("--unseen", is_flag=True, help="Leave out the questions that a coach was fitted on.")
@click.option(
    "--run", "runs", metavar="RUN", type=click.Path(path_type=Path), multiple=True, help="A run; may be repeated."
)
@click.option(
    "--on", "benchmark", type=click.Choice(["who-and-when", "agent-process-bench"]), help="Public labelled set."
)
@click.option(
    "--data", metavar="FILE", type=click.Path(path_type=Path), multiple=True, help="File of the set; may be repeated."
)
@click.option("--file", metavar="FILE", type=click.Path(path_type=Path), help="Labelled actions, one per line.")
@click.option("--agent", "agents", metavar="AGENT", multiple=True, help="Only actions of this agent; may be repeated.")
@click.option(
    "--against",
    type=click.Choice(["labels", "outcome", "counterfactual"]),
    help="What is known of an action: what people said, the outcome of its trajectory, or its own counterfactual "
    "credit. By default labels where the runs have some, else the outcome.",
)
@click.option(
    "--truth",
    type=click.Choice(["hidden", "shown", "both"]),
    default="hidden",
    show_default=True,
    help="Whether coaches of labelled runs see the known answer.",
)
@click.option(
    "--ask",
    type=click.Choice(["together", "each"]),
    default="together",
    show_default=True,
    help="Labelled runs: all actions of a run after its end, or each with what came before it.",
)
@click.option("--labeller", metavar="NAME", help="Use the labels of this person; by default of any.")
@label_options
@click.option("--repeats", metavar="N", type=AT_LEAST_ONE, default=1, show_default=True, help="Verdicts per action.")
@click.option("--cassette", metavar="FILE", type=click.Path(path_type=Path), help="Keep verdicts; ask none twice.")
@click.option("--limit", metavar="N", type=AT_LEAST_ONE, help="Trajectories at most, drawn at random.")
@click.option(
    "--concurrency", metavar="N", type=AT_LEAST_ONE, default=64, show_default=True, help="Parallel questions."
)
@click.option(
    "--timeout", metavar="S", type=POSITIVE_SECONDS, default=120.0, show_default=True, help="Timeout of a verdict."
)
@click.option("--save", metavar="FILE", type=click.Path(path_type=Path), help="Also write the labelled actions.")
@file_option
@trust_option
@quiet_option
@json_option
@click.argument("settings", nargs=-1, metavar="[NAME.KEY=VALUE]...")
def eval_command(**options: Any) -> None:
    """Evaluate coaches on actions with known labels or outcomes.

    Actions are those of runs or of a public set of labelled failures, or those of a JSON Lines file: {"scene": …,
    "label": 1.0, "trajectory": "…"}, as --save writes them; a label above 0.5 is a right action. A coach is named by
    its offer, or by NAME=OFFER to try one offer with several options:

    \b
      mappa coach eval --run runs/x --coach low=gemini --coach high=gemini low.model=… high.model=…
      mappa coach eval --on who-and-when --data who_and_when.jsonl --coach gemini gemini.model=…

    Where people labelled runs, coaches have to find the guilty agent, the decisive step, the first error and the value
    of every step. Otherwise scores are compared with the outcome of the run, or, where it was trained with
    credit.counterfactual.use, with what another action would have changed (--against counterfactual).
    """
    from mappa.look.cli.coach_choices import calibrated_jury, parse_coaches, recorded_judges
    from mappa.look.cli.verdict_tables import check_answered, verdict_bar
    from mappa.look.importing import LogMapping
    from mappa.look.importing.log_mapping import LABEL_KEYS

    mapping = LogMapping(**{key: options.pop(key) for key in LABEL_KEYS if key in options})
    asked = EvalRequest(mapping=mapping, **options)
    asked.check()
    registry = load_registry()
    chosen = parse_coaches(registry, asked.coaches, asked.settings)
    if asked.judges is not None:
        chosen += recorded_judges(registry, asked.judges)
    if asked.jury is not None:
        chosen.append(calibrated_jury(registry, asked.jury))
    errors = Console(stderr=True)
    with verdict_bar(errors, quiet=asked.quiet or asked.as_json) as bar:
        evaluate = _evaluate_labels if _uses_labels(asked) else _evaluate_scores
        found = asyncio.run(evaluate(registry, asked, chosen, errors, bar))
    if asked.as_json:
        echo(found.document)
    else:
        found.show(Console())
    check_answered(found.counts)


def _uses_labels(asked: EvalRequest) -> bool:
    """Whether coaches are held against labels of people."""
    from mappa.look.coach_eval.labelled_runs import has_labels

    if asked.against is not None:
        return asked.against == "labels"
    return asked.benchmark is not None or (bool(asked.runs) and all(has_labels(folder) for folder in asked.runs))


def _limits(asked: EvalRequest) -> JudgingLimits:
    from mappa.look.coach_eval.batch_judge import JudgingLimits

    return JudgingLimits(concurrency=asked.concurrency, timeout_s=asked.timeout)


async def _evaluate_labels(
    registry: Registry, asked: EvalRequest, chosen: Sequence[CoachChoice], errors: Console, bar: VerdictBar
) -> _Evaluated:
    """Evaluate on labelled runs, once or with the truth hidden and shown."""
    from mappa.look.cli import attribution_tables
    from mappa.look.cli.coach_choices import open_coaches
    from mappa.look.coach_eval.evaluate_attribution import evaluate_attribution
    from mappa.look.coach_eval.unseen_runs import leave_out_seen

    if asked.file is not None or asked.agents or asked.save is not None:
        raise ConfigError("--file, --agent and --save are of single actions: leave them out with labelled runs")
    shown = {"hidden": [False], "shown": [True], "both": [False, True]}[asked.truth]
    found: list[AttributionEvaluation] = []
    async with open_coaches(registry, chosen, errors, repeats=asked.repeats, cassette=asked.cassette) as judges:
        fitted = [judge for judge, *_ in judges]
        sets = [await _read_runs(registry, asked, truth=truth) for truth in shown]
        if asked.unseen:
            sets = [leave_out_seen(labelled, fitted) for labelled in sets]
        bar.start(asked.repeats * len(chosen) * sum(len(run.scenes) for labelled in sets for run in labelled.runs))
        for labelled in sets:
            found.append(
                await evaluate_attribution(
                    judges, labelled, _limits(asked), benchmark=asked.benchmark, on_verdict=bar.advance
                )
            )
    return _Evaluated(
        document=attribution_tables.attribution_json(found),
        show=partial(attribution_tables.show_attribution, certificates=found),
        counts=[coach.counts for one in found for coach in one.coaches],
    )


async def _read_runs(registry: Registry, asked: EvalRequest, *, truth: bool) -> LabelledRuns:
    from mappa.look.coach_eval.labelled_runs import read_benchmark, read_labelled_runs
    from mappa.look.importing.label_files import parse_label_file

    hindsight = asked.ask == "together"
    if asked.benchmark is not None:
        return read_benchmark(
            asked.benchmark, asked.data, truth=truth, hindsight=hindsight, labeller=asked.labeller, limit=asked.limit,
            label_files=[parse_label_file(word) for word in asked.labels], mapping=asked.mapping,
        )  # fmt: skip
    return await read_labelled_runs(
        registry,
        asked.runs,
        truth=truth,
        hindsight=hindsight,
        labeller=asked.labeller,
        limit=asked.limit,
        trust=asked.trust,
    )


async def _evaluate_scores(
    registry: Registry, asked: EvalRequest, chosen: Sequence[CoachChoice], errors: Console, bar: VerdictBar
) -> _Evaluated:
    """Evaluate against outcomes, or against counterfactual credit."""
    from mappa.look.cli import blame_tables, coach_eval_tables
    from mappa.look.cli.coach_choices import open_coaches
    from mappa.look.coach_eval.blame import evaluate_blame
    from mappa.look.coach_eval.evaluate import evaluate_coaches

    if asked.truth != "hidden" or asked.labeller is not None:
        raise ConfigError("--truth and --labeller are for labelled runs; here coaches see what a run's did")
    labels = await _read_labels(registry, asked)
    bar.start(len(chosen) * asked.repeats * len(labels.actions))
    async with open_coaches(registry, chosen, errors, repeats=asked.repeats, cassette=asked.cassette) as judges:
        if asked.against == "counterfactual":
            once = [judge for judge, *_ in judges]
            blaming: BlameEvaluation = await evaluate_blame(once, labels, _limits(asked), on_verdict=bar.advance)
            return _Evaluated(
                document=blame_tables.blame_json(blaming),
                show=partial(blame_tables.show_blame, certificate=blaming),
                counts=[coach.counts for coach in blaming.coaches],
            )
        certified: CoachEvaluation = await evaluate_coaches(judges, labels, _limits(asked), on_verdict=bar.advance)
    return _Evaluated(
        document=coach_eval_tables.coach_evaluation_json(certified),
        show=partial(coach_eval_tables.show_coach_evaluation, certificate=certified),
        counts=[coach.counts for coach in certified.coaches],
    )


async def _read_labels(registry: Registry, asked: EvalRequest) -> LabelledSet:
    from mappa.look.coach_eval.labelled_actions import label_runs, read_labels, write_labels

    if asked.file is not None:
        labels = read_labels(asked.file, asked.limit)
    else:
        source: LabelSource = "counterfactual" if asked.against == "counterfactual" else "outcome"
        labels = await label_runs(registry, asked.runs, asked.limit, label_source=source, trust=asked.trust)
    if asked.agents:
        labels = labels.for_agents(asked.agents)
    if asked.save is not None:
        write_labels(asked.save, labels)
    return labels
