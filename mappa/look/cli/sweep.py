"""`mappa sweep`: train every combination of settings and seeds as a run, and compare them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mappa.cli.command_group import blocked_plugins
from mappa.cli.common_options import json_option, quiet_option
from mappa.cli.console import Console, echo
from mappa.cli.options import ConfigArguments, load_registry, recipe_options, trust_option
from mappa.look.cli.sweep_progress import SweepDisplay, open_display, watch_runs
from mappa_core import ConfigError

if TYPE_CHECKING:
    from mappa.look.sweep import Launcher, Sweep, SweepResult

EXIT_FAILED = 2
"""Exit code if a run of the sweep failed, or the runs cannot be compared."""


@click.command("sweep")
@recipe_options
@click.option(
    "--vary", metavar="KEY=[A, B]", multiple=True, help="Values of a setting, as a YAML list; may be repeated."
)
@click.option(
    "--arms",
    metavar="ARM,ARM",
    help="Settings to compare, by name: process (reward an action by its verdict), outcome (by the outcome of its "
    "rollout), or YAML files.",
)
@click.option("--seeds", metavar="0,1,2", help="Seeds of every setting; 0 by default.")
@click.option("--folder", metavar="DIR", type=click.Path(path_type=Path), help="New folder for the sweep.")
@click.option("--resume", metavar="DIR", type=click.Path(path_type=Path), help="Continue the sweep in this folder.")
@trust_option
@click.option("--jobs", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time.")
@click.option("--ray", metavar="ADDRESS", help="Run on the machines of this Ray: auto, or HOST:PORT.")
@click.option("--cpus", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="CPUs of a run on Ray.")
@click.option(
    "--gpus", metavar="N", type=click.FloatRange(0), default=0.0, show_default=True, help="GPUs of a run on Ray."
)
@quiet_option
@json_option
def command(
    arguments: ConfigArguments,
    vary: Sequence[str],
    arms: str | None,
    seeds: str | None,
    folder: Path | None,
    resume: Path | None,
    trust: bool,
    jobs: int,
    ray: str | None,
    cpus: int,
    gpus: float,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train every combination of settings with every seed, and compare.

    Each combination is one run, trained by mappa train. Finished runs are not run again, interrupted runs continue, and
    a failed run is shown and does not stop the others. With --ray every run takes a share of the cluster's machines,
    which must have Mappa installed and share the sweep's folder.

    \b
      mappa sweep --plugin mathchat --seeds 0,1,2 --arms process,outcome
      mappa sweep --plugin mathchat --seeds 0,1,2 --vary 'train.learning_rate=[2e-4, 5e-4]' train.iterations=20
      mappa sweep --resume runs/sweep-mathchat-tiny-20260101-120000-1a2b
    """
    import msgspec

    from mappa.look.sweep import collect_results, load_sweep, require_trusted_sweep
    from mappa.look.view.sweep_page import write_sweep_page

    if ray is not None:
        _check_ray_installed()
    if resume is None:
        folder, sweep = _create_sweep(arguments, vary, arms, seeds, folder)
    else:
        began_with = (arguments.plugin, arguments.chooses_config, arguments.words)
        if any((vary, arms, seeds, folder, *began_with)):
            raise ConfigError(
                "--resume goes on with what the sweep began with: leave everything out but --jobs and --ray"
            )
        folder, sweep = resume, load_sweep(resume)
        require_trusted_sweep(folder, sweep, load_registry(), trust=trust)
    try:
        with open_display(Console(stderr=True), jobs, quiet=quiet or as_json) as display:
            done = asyncio.run(_run(folder.resolve(), sweep, display, jobs=jobs, ray=ray, cpus=cpus, gpus=gpus))
    except (KeyboardInterrupt, SystemExit, ConfigError):
        click.echo(f"nothing is lost; go on with: mappa sweep --resume {shlex.quote(str(folder))}", err=True)
        raise
    results = collect_results(folder, done)
    page = write_sweep_page(folder, results, sweep_notes(results))
    if as_json:
        echo(msgspec.json.encode(sweep_json(folder, results)).decode())
    else:
        show_sweep(Console(), results, page)
    if results.why_not is not None or results.sweep.runs_with_status("failed"):
        raise click.exceptions.Exit(EXIT_FAILED)


def _check_ray_installed() -> None:
    try:
        from mappa_engine import check_installed
    except ImportError:
        raise ConfigError('--ray needs mappa-engine: pip install "mappa-engine[cluster]"') from None
    check_installed("--ray", ["ray"])


async def _run(
    folder: Path,
    sweep: Sweep,
    display: SweepDisplay,
    *,
    jobs: int,
    ray: str | None,
    cpus: int,
    gpus: float,
) -> Sweep:
    """Run what is not done yet, on this machine or on Ray."""
    from mappa.look.sweep import SweepRunner, launch_locally

    async def run(launch: Launcher) -> Sweep:
        runner = SweepRunner(folder, sweep, jobs=jobs, on_change=display.on_change, launch=launch)
        async with watch_runs(runner, folder, display):
            return await runner.run()

    if ray is None:
        return await run(launch_locally)
    from mappa_engine import SubprocessJobs

    programs = await SubprocessJobs.open(ray, folder, jobs=jobs, cpus=cpus, gpus=gpus)
    try:
        return await run(programs.run)
    finally:
        await programs.close()


def _create_sweep(
    arguments: ConfigArguments, vary: Sequence[str], arms: str | None, seeds: str | None, folder: Path | None
) -> tuple[Path, Sweep]:
    """Compose, check and create a new sweep."""
    from mappa.look.sweep import build_arms, create_sweep, read_arms
    from mappa.store.folder import new_run_name

    if arguments.name is not None:
        raise ConfigError("--name names one run; name the folder of a sweep with --folder DIR")
    registry = load_registry()
    composed = arguments.compose(registry)
    if folder is None:
        folder = Path(composed.config.run.root) / f"sweep-{new_run_name(composed.plugin, composed.recipe)}"
    numbers = _seeds(seeds) if seeds else (composed.config.seed,)
    named = {} if arms is None else read_arms(_split(arms))
    planned = build_arms(named, vary)
    return folder, create_sweep(folder, composed, registry, arms=planned, seeds=numbers, blocked=blocked_plugins())


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _seeds(text: str) -> tuple[int, ...]:
    words = _split(text)
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"--seeds {text}: write whole numbers, for example --seeds 0,1,2")
    return tuple(int(word) for word in words)


def sweep_notes(results: SweepResult) -> list[str]:
    """Notes on the basis of the figures, and on the chosen setting."""
    from mappa.look.cli.compare import comparison_notes

    if results.compared is None:
        return [] if results.why_not is None else [f"not compared: {results.why_not}"]
    lines = comparison_notes(results.compared)
    if len(results.compared.arms) < 2:
        return lines
    if len(results.sweep.runs_with_status("done")) < len(results.sweep.runs):
        return [*lines, "No setting is named the best before all runs are done."]
    if results.chosen is None:
        return [
            *lines,
            "No setting is named the best: the tasks that are reported must not choose it. checkpoint.best=true sets "
            "tasks apart for that.",
        ]
    name, mean = results.chosen
    return [*lines, f"Chosen on other tasks, with a mean of {mean:.1%} there: {name}. Its figures are those above."]


def show_sweep(console: Console, results: SweepResult, page: Path) -> None:
    """Print the arms, their differences, failed runs, and the path of the report."""
    from mappa.look.cli import compare

    if results.compared is not None:
        compare.show_comparison(console, results.compared, sweep_notes(results))
    if results.why_not is not None:
        console.print(*sweep_notes(results), style="yellow", highlight=False, markup=False, soft_wrap=True)
    for run in results.sweep.runs_with_status("failed"):
        line = f"failed   {run.folder} ({results.sweep.setting(run)}, seed {run.seed}): {run.error}"
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if results.sweep.runs_with_status("failed"):
        again = f"again    mappa sweep --resume {shlex.quote(str(page.parent))}"
        console.print(again, highlight=False, markup=False, soft_wrap=True)
    console.print(f"report   {page}", highlight=False, markup=False, soft_wrap=True)


def sweep_json(folder: Path, results: SweepResult) -> dict[str, Any]:
    """Convert a sweep to JSON values: status of every run, the comparison (null before a run is done, or for
    the reason `not_compared`), the choice."""
    import msgspec

    from mappa.look.cli import compare

    chosen = None if results.chosen is None else {"setting": results.chosen[0], "selection_mean": results.chosen[1]}
    return {
        "folder": str(folder),
        **msgspec.to_builtins(results.sweep),
        "compared": None if results.compared is None else compare.comparison_json(results.compared),
        "not_compared": results.why_not,
        "chosen": chosen,
    }
