"""`mappa coach calibrate`: learn from labelled runs what the verdicts of several coaches are worth together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mappa.commands import Console, did_you_mean, echo, json_option, load_registry, quiet_option
from mappa_core import ConfigError, Registry, Use, Verdict

if TYPE_CHECKING:
    from mappa.judging import Benchmark, CoachChoice, VerdictBar, VerdictCounts
    from mappa_calibration.jury.anchors import Anchors

AT_LEAST_ONE = click.IntRange(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRequest:
    """The options of the command."""

    coaches: Sequence[str]
    judges: Path | None
    only: Sequence[str]
    runs: Sequence[Path]
    benchmark: Benchmark | None
    data: Sequence[Path]
    labeller: str | None
    members: int | None
    share: float
    draws: int
    cassette: Path | None
    limit: int | None
    concurrency: int
    timeout: float
    out: Path
    quiet: bool
    as_json: bool
    settings: Sequence[str]

    def check(self) -> None:
        """Raises ConfigError for options that do not go together."""
        if bool(self.runs) == bool(self.benchmark) or bool(self.benchmark) != bool(self.data):
            raise ConfigError("name what is labelled: --run RUN (one or more), or --on NAME with its --data FILE")
        if not self.coaches and self.judges is None:
            raise ConfigError("name the members: --coach OFFER, or --judges FILE with recorded verdicts")
        if self.members is not None and self.members < 2:
            raise ConfigError("--members: a jury has at least two")


@click.command("calibrate")
@click.option("--coach", "coaches", metavar="[NAME=]OFFER", multiple=True, help="A member; may be repeated.")
@click.option(
    "--judges", metavar="FILE", type=click.Path(path_type=Path), help="Recorded verdicts; each judge is a member."
)
@click.option("--only", metavar="NAME", multiple=True, help="Use only this member; may be repeated.")
@click.option(
    "--run", "runs", metavar="RUN", type=click.Path(path_type=Path), multiple=True, help="A run; may be repeated."
)
@click.option("--on", "benchmark", type=click.Choice(["agent-process-bench"]), help="Public labelled set.")
@click.option(
    "--data", metavar="FILE", type=click.Path(path_type=Path), multiple=True, help="File of the set; may be repeated."
)
@click.option("--labeller", metavar="NAME", help="Use the labels of this person.")
@click.option("--members", metavar="N", type=AT_LEAST_ONE, help="Keep only the N best members.")
@click.option(
    "--share",
    metavar="S",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the questions to learn from, by their hash; the others are left for a certificate.",
)
@click.option(
    "--draws",
    metavar="N",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Samples of labelled runs at each size, to say how many labels it takes; 0: none.",
)
@click.option("--cassette", metavar="FILE", type=click.Path(path_type=Path), help="Keep verdicts; ask none twice.")
@click.option("--limit", metavar="N", type=AT_LEAST_ONE, help="Runs at most, drawn at random.")
@click.option(
    "--concurrency", metavar="N", type=AT_LEAST_ONE, default=64, show_default=True, help="Parallel questions."
)
@click.option(
    "--timeout",
    metavar="S",
    type=click.FloatRange(min=0.0, min_open=True),
    default=120.0,
    show_default=True,
    help="Timeout of a verdict in seconds.",
)
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), required=True, help="The calibration.")
@quiet_option
@json_option
@click.argument("settings", nargs=-1, metavar="[NAME.KEY=VALUE]...")
def command(**options: Any) -> None:
    """Make one calibrated jury of several coaches.

    The coaches judge labelled runs; a regression learns how much the verdict of each counts beside those of the others.
    FILE is for a coach `ensemble` with combine=calibrated; the YAML file beside it has that coach, for a recipe:

    \b
      mappa coach calibrate --run runs/x --coach a=gemini --coach b=openai a.model=… b.model=… --out jury.json
      mappa train --plugin mathchat --config jury.yaml
      mappa coach eval --jury jury.json --unseen --run runs/x

    It prints how well the jury judges questions that it has not seen, estimated by cross-validation.
    """
    from mappa.judging import check_answered, verdict_bar

    try:
        from mappa_calibration.jury.calibrate import calibrate, check_places
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sklearn":
            raise
        raise ConfigError('juries need scikit-learn: pip install "mappa-calibration[jury]"') from error
    from mappa_calibration.jury.jury_tables import jury_json, show_jury

    asked = CalibrationRequest(**options)
    asked.check()
    check_places(asked.out)
    registry = load_registry()
    chosen = _choose_members(registry, asked)
    errors = Console(stderr=True)
    with verdict_bar(errors, quiet=asked.quiet or asked.as_json) as bar:
        anchors, counts = asyncio.run(_judge(registry, asked, chosen, errors, bar))
    members = [Use(use=choice.offer, options=choice.options) for choice in chosen]
    result = calibrate(anchors, members, asked.out, share=asked.share, keep=asked.members, draws=asked.draws)
    if asked.as_json:
        echo(jury_json(result))
    else:
        show_jury(Console(), result)
    check_answered(counts)


def _choose_members(registry: Registry, asked: CalibrationRequest) -> list[CoachChoice]:
    """The coaches of `--coach` and those recorded in the file of `--judges`, or of these `--only` some.

    Raises:
        ConfigError: a name of `--only` is nobody's, or fewer than two are left. What `parse_coaches` and
            `recorded_judges` raise.
    """
    from mappa.judging import parse_coaches, recorded_judges

    chosen = parse_coaches(registry, asked.coaches, asked.settings)
    if asked.judges is not None:
        chosen += recorded_judges(registry, asked.judges)
    names = [choice.name for choice in chosen]
    for name in asked.only:
        if name not in names:
            raise ConfigError(f"--only {name}: no member is named so.{did_you_mean(name, names)}")
    chosen = [choice for choice in chosen if not asked.only or choice.name in asked.only]
    if len(chosen) < 2:
        raise ConfigError(f"a jury has at least two members, here is {', '.join(names)}")
    return chosen


async def _judge(
    registry: Registry, asked: CalibrationRequest, chosen: Sequence[CoachChoice], errors: Console, bar: VerdictBar
) -> tuple[Anchors, list[VerdictCounts]]:
    """Have every member judge the labelled runs, which are shown without the truth and all at once. Return what they
    said, and how many verdicts of each failed."""
    from mappa.judging import (
        JudgingLimits,
        count_statuses,
        judge_actions,
        judge_in_turn,
        open_coaches,
        read_benchmark,
        read_labelled_runs,
    )
    from mappa_calibration.jury.anchors import Anchors
    from mappa_calibration.jury.validation import check_labels

    if asked.benchmark is not None:
        labelled = read_benchmark(asked.benchmark, asked.data, limit=asked.limit)
    else:
        labelled = await read_labelled_runs(registry, asked.runs, labeller=asked.labeller, limit=asked.limit)
    check_labels(labelled.runs, asked.share)
    scenes = [run.scenes for run in labelled.runs]
    bar.start(len(chosen) * sum(map(len, scenes)))
    limits = JudgingLimits(concurrency=asked.concurrency, timeout_s=asked.timeout)

    def count(verdict: Verdict) -> Verdict:
        bar.advance(verdict)
        return verdict

    async with open_coaches(registry, chosen, errors, cassette=asked.cassette) as judges:
        members = [judge for (judge,) in judges]
        passes = (judge_actions(judge, scenes, limits, review=True, finalize=count) for judge in members)
        given = await judge_in_turn(members, passes)
    anchors = Anchors.from_verdicts(labelled.runs, dict(zip((judge.name for judge in members), given, strict=True)))
    return anchors, [count_statuses([verdict for of_run in verdicts for verdict in of_run]) for verdicts in given]
