"""What the comparisons of this folder share: arms trained over seeds, each run once, and what made their results.

A study is arms (settings by name) times seeds. Its runs are those of a sweep, processes of their own that see the
offers of this folder as installed plugins. They lie in a folder named by what is in Mappa's sources and the settings,
so what is finished there is never trained again, and what was interrupted goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from itertools import product
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import click
from arms import RECIPE, numbers, write
from stored import TrainedRun, problems_of, provenance, source, told

from mappa.look.cli.sweep_progress import run_status_line
from mappa.look.sweep import (
    Sweep,
    SweepArm,
    SweepRun,
    SweepRunner,
    create_sweep,
    launch_locally,
    load_sweep,
    save_sweep,
)
from mappa.training.run import Run
from mappa_core.config.schema import RunConfig
from mappa_core.errors import InputError
from mappa_core.plugins import ENTRY_POINT_GROUP, load_plugins

HERE = Path(__file__).parent
RESULTS = HERE / "results"
QUICK = ("train.iterations=4", "eval.problems=32")
FULL = ("train.iterations=24", "eval.problems=128")
"""Short runs, where accuracy still rises: what is slower shows there, and at a ceiling no more."""
SEEDS = "0,1,2,3,4"
UNGUARDED = "coach.max_missing=1"
"""A coach that fails, abstains, or has little to judge is here what is measured, and no reason to stop."""
Words = tuple[str, ...]


class Failed(click.ClickException):
    """Runs that did not come to their end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks of a study. `out`: where the results go; None: to their place."""

    quick: bool
    seeds: tuple[int, ...]
    jobs: int
    out: Path | None
    settings: Words


def study_options(function: Callable[..., None]) -> Callable[..., None]:
    """Options that every study has, as its first argument; those of its own are passed on. Input that cannot be used
    ends it with a message and exit code 2."""

    @wraps(function)
    def command(**options: Any) -> None:
        asked = Asked(**{one.name: options.pop(one.name) for one in fields(Asked)})
        sizes, seeds = (QUICK, asked.seeds[:1]) if asked.quick else (FULL, asked.seeds)
        try:
            function(replace(asked, seeds=seeds, settings=(*sizes, *asked.settings)), **options)
        except InputError as error:
            raise click.UsageError(str(error)) from error

    decorators = (
        click.option("--quick", is_flag=True, help="One short seed: tries the machinery and shows nothing."),
        click.option("--seeds", default=SEEDS, show_default=True, callback=numbers, help="Seeds to train with."),
        click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Runs at a time."),
        click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for all figures."),
        click.argument("settings", nargs=-1, metavar="[KEY=VALUE]..."),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


@dataclass(kw_only=True)
class Study:
    """The runs of one script. `offers` are the plugins of this folder that they need, by name."""

    name: str
    asked: Asked
    offers: Mapping[str, ModuleType] = field(default_factory=dict)
    recipe: str = RECIPE

    def __post_init__(self) -> None:
        self._started = perf_counter()
        self.registry = load_plugins(modules=self.offers)
        self._composed = Run.from_recipe(self.recipe, *self.asked.settings, registry=self.registry).composed
        self.source = source()
        settings = hashlib.sha256(f"{self._composed.recipe_hash} {self.source}".encode()).hexdigest()
        self.folder = Path(self.config.run.root) / "evidence" / f"{self.name}-{settings[:12]}"
        self.runs: dict[Path, TrainedRun] = {}
        """Every run that was asked for."""

    @property
    def config(self) -> RunConfig:
        """The settings that all runs share."""
        return self._composed.config

    @property
    def rollouts_per_iteration(self) -> int:
        """Trajectories that all runs collect in an iteration."""
        return self.config.train.prompts * self.config.train.samples

    def train(self, arms: Mapping[str, Words], seeds: Sequence[int]) -> dict[str, tuple[Path, ...]]:
        """The runs of every arm, one a seed, in the order of the seeds. Those that are done are taken as they are.

        Raises:
            Failed: a run did not come to its end; the others did.
            ConfigError, PluginError: an arm sets what cannot be set.
        """
        named = {name: SweepArm(name=_slug(name, words), title=name, words=words) for name, words in arms.items()}
        asyncio.run(self._run(self._sweep(tuple(named.values()), seeds)))
        found = {name: tuple(self.folder / _folder(arm, seed) for seed in seeds) for name, arm in named.items()}
        for name, words in arms.items():
            for folder, seed in zip(found[name], seeds, strict=True):
                self.runs[folder] = TrainedRun(arm=name, seed=seed, words=words, folder=folder)
        return found

    def _sweep(self, arms: Sequence[SweepArm], seeds: Sequence[int]) -> Sweep:
        """The sweep in the study's folder, with the arms and runs that it lacked, and without those that were begun
        and are not asked for now."""
        if not self.folder.exists():
            return create_sweep(self.folder, self._composed, self.registry, arms=arms, seeds=seeds)
        known = load_sweep(self.folder)
        new = [arm for arm in arms if arm not in known.arms]
        for arm in new:
            words = (*self.asked.settings, *arm.words)
            Run.from_recipe(self.recipe, *words, registry=self.registry).composed.require_installed()
        there = {run.folder: run for run in known.runs if run.status == "done"}
        for arm, seed in product(arms, seeds):
            folder = _folder(arm, seed)
            there.setdefault(folder, SweepRun(arm=arm.name, seed=seed, folder=folder))
        sweep = replace(known, arms=(*known.arms, *new), runs=tuple(there.values()))
        save_sweep(self.folder, sweep)
        return sweep

    async def _run(self, sweep: Sweep) -> None:
        def changed(now: Sweep, run: SweepRun) -> None:
            click.echo(run_status_line(now, run), err=True)

        running = SweepRunner(self.folder, sweep, jobs=self.asked.jobs, on_change=changed, launch=launch_locally)
        with installed(self.folder / "plugins", self.offers):
            done = await running.run()
        if failed := done.runs_with_status("failed"):
            told = "\n".join(f"  {run.folder}: {run.error}" for run in failed)
            raise Failed(
                f"{len(failed)} of {len(done.runs)} runs did not come to their end:\n{told}\nTry again: what "
                f"is done in {self.folder} is not run again."
            )

    def write(self, **figures: Any) -> Path:
        """Write all figures beside what made them; where to."""
        write(self.place, self.document(**figures))
        return self.place

    @property
    def place(self) -> Path:
        """Where results go. A quick run leaves those of this folder alone."""
        return self.asked.out or (self.folder / "quick.json" if self.asked.quick else RESULTS / f"{self.name}.json")

    def document(self, **figures: Any) -> dict[str, Any]:
        """All figures beside what made them."""
        asked = self.asked
        return {
            "study": self.name,
            "quick": asked.quick,
            **provenance(),
            "source": self.source,
            "recipe": self.recipe,
            "settings": asked.settings,
            "seeds": asked.seeds,
            "jobs": asked.jobs,
            "seconds": perf_counter() - self._started,
            "problems": problems_of(self.runs),
            "runs": [told(run) for run in self.runs.values()],
            **figures,
        }

    def finish(self, place: Path) -> None:
        """Say where the results are, and of a quick run what it is worth."""
        click.echo(f"\nresults  {place}")
        if self.asked.quick:
            click.echo("--quick tries the machinery with one short seed. It shows nothing of what the study is about.")


@contextmanager
def installed(folder: Path, offers: Mapping[str, ModuleType]) -> Iterator[None]:
    """Processes that are started inside find `offers` as plugins of an installed package, whose metadata is written to
    `folder`."""
    package = folder / "mappa_evidence-0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mappa-evidence\nVersion: 0\n")
    points = "".join(f"{name} = {module.__name__}\n" for name, module in offers.items())
    (package / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{points}")
    before = os.environ.get("PYTHONPATH")
    places = [str(folder.resolve()), str(HERE), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _slug(name: str, words: Words) -> str:
    """A folder's name for an arm: another one where it sets something else."""
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{readable}-{hashlib.sha256(repr(words).encode()).hexdigest()[:6]}"


def _folder(arm: SweepArm, seed: int) -> str:
    return f"{arm.name}-s{seed}"
