"""Do the agents learn, and is it no toy? The tiny recipe as it is, and what its models and its records show.

Held-out accuracy before and after, one run a seed; greedy accuracy before training; held-out texts among all that the
warm start was made from; distinct programs of the untrained team in one iteration; and whether the code of every call
is byte for byte in the text that the sampled tokens decode to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from arms import RECIPE, Figures, evidence_options, figures, seconds, table, train
from stored import TrainedRun, write_runs

from mappa.cli.formats import format_share
from mappa.config.compose import ComposedConfig
from mappa.evaluation.standalone import evaluate_standalone
from mappa.runs import RunReader
from mappa.training.run import Run, TrainResult
from mappa_core.plugins import Registry, load_plugins
from mappa_core.records import Completion, Interval, Step
from mappa_mathchat.tiny.warm_start import WARM_START, hash_problem_texts, problem_texts
from mappa_mathchat.word_problems import fingerprint_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run, or with seed None all of them. `seconds` is wall time."""

    seed: int | None
    figures: Figures
    seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        shown, seed = self.figures, "all" if self.seed is None else str(self.seed)
        return (
            seed,
            format_share(shown.before),
            format_share(shown.after),
            format_share(shown.gain, sign=True),
            f"{self.seconds:.0f}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """All problem texts that the model and its tokenizer were made from, written again by the seed in the manifest.

    `as_recorded`: they have the fingerprint that the manifest of the shipped model has. `found`: how many of the
    `held_out` texts are among them.
    """

    problems: int
    as_recorded: bool
    held_out: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Calls with code: of the untrained team in the first iteration by seed, and over all runs with evaluations.

    `altered` is how many of all had code that is not byte for byte in the decoded text.
    """

    untrained: tuple[int, ...]
    untrained_distinct: tuple[int, ...]
    all: int
    altered: int


@click.command(help=__doc__)
@evidence_options
def main(seeds: tuple[int, ...], out: Path | None, settings: tuple[str, ...]) -> None:
    registry = load_plugins()
    runs = [train("tiny", seed, settings, registry) for seed in seeds]
    rows = [Row(seed=seed, figures=figures([run]), seconds=seconds(run)) for seed, run in zip(seeds, runs, strict=True)]
    rows.append(Row(seed=None, figures=figures(runs), seconds=sum(map(seconds, runs))))
    greedy = Run.from_recipe(RECIPE, *settings, "eval.temperature=0", registry=registry).composed
    accuracy = asyncio.run(evaluate_standalone(greedy, registry)).evaluation.interval
    model = model_folder(greedy)
    warm_start = warm_start_of(model, greedy, registry)
    programs = programs_of(model, runs)
    click.echo(table(("seed", "before", "after", "gain", "s"), [row.cells for row in rows]))
    click.echo()
    click.echo(table(("measure", "value"), no_toy(accuracy, warm_start, programs)))
    write_runs(
        out,
        "learns",
        [TrainedRun(arm="tiny", seed=seed, words=(), folder=run.folder) for seed, run in zip(seeds, runs, strict=True)],
        recipe=RECIPE,
        settings=settings,
        rows=rows,
        greedy=accuracy,
        warm_start=warm_start,
        programs=programs,
    )


def no_toy(greedy: Interval | None, warm_start: WarmStart, programs: Programs) -> Iterator[tuple[str, str]]:
    """Rows of the second table."""
    yield "greedy accuracy before training", format_share(greedy)
    recorded = "as" if warm_start.as_recorded else "NOT as"
    yield (
        "held-out texts in the warm-start data",
        f"{warm_start.found} of {warm_start.held_out} ({warm_start.problems:,} texts, {recorded} the manifest records)",
    )
    distinct = zip(programs.untrained_distinct, programs.untrained, strict=True)
    yield (
        "distinct programs of the untrained team, first iteration of each seed",
        ", ".join(f"{different} of {all_}" for different, all_ in distinct),
    )
    yield "programs that are not byte for byte in the decoded text", f"{programs.altered} of {programs.all:,}"


def model_folder(composed: ComposedConfig) -> Path:
    """Where the model lies that all three agents start from."""
    from mappa_engine.model_path import resolve_model_path

    return Path(resolve_model_path(composed.config.policies["default"].model))


def warm_start_of(model: Path, composed: ComposedConfig, registry: Registry) -> WarmStart:
    """Write the warm start's texts again and look for the held-out ones among them, by hash."""
    manifest = json.loads((model / "manifest.json").read_text("utf-8"))
    curriculum = WARM_START.curriculum(manifest["seed"], manifest["steps"])
    for written in (curriculum.texts(), curriculum.conversations()):
        for _ in written:
            pass  # writing fills in what was shown
    texts = problem_texts(curriculum) | curriculum.sample.problem_texts
    hashes = {fingerprint_text(text) for text in texts}
    tasks = registry.build("tasks", composed.config.tasks.use, composed.config.tasks.options).load("eval")
    return WarmStart(
        problems=len(texts),
        as_recorded=hash_problem_texts(problem_texts(curriculum)) == manifest["problems_sha256"],
        held_out=len(tasks),
        found=sum(fingerprint_text(task.prompt) in hashes for task in tasks),
    )


def programs_of(model: Path, runs: Sequence[TrainResult]) -> Programs:
    """Read the programs of `runs` back from their stores."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    untrained = [[code for step in steps_of(run.folder, "train", 0) for code in codes_of(step)] for run in runs]
    found = [
        code.encode() in decoded(tokenizer, step.completion).encode()
        for run in runs
        for step in steps_of(run.folder)
        for code in codes_of(step)
    ]
    return Programs(
        untrained=tuple(len(codes) for codes in untrained),
        untrained_distinct=tuple(len(set(codes)) for codes in untrained),
        all=len(found),
        altered=found.count(False),
    )


def steps_of(folder: Path, split: str | None = None, iteration: int | None = None) -> Iterator[Step]:
    """Recorded steps of a run; None is any split, any iteration."""
    with RunReader(folder) as reader:
        for row in reader.trajectories.where(split=split, iteration=iteration):
            yield from reader.trajectory(row.id).steps


def codes_of(step: Step) -> Iterator[str]:
    """The code of every call that was run."""
    return (call.arguments["code"] for call in step.calls if call.error is None)


def decoded(tokenizer: PreTrainedTokenizerBase, completion: Completion) -> str:
    """The sampled tokens as text, without the stop token."""
    assert completion.tokens is not None  # the agents' policies are in process
    tokens = completion.tokens[:-1] if completion.finish == "stop" else completion.tokens
    return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))


if __name__ == "__main__":
    main()
