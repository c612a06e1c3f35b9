"""`mappa sweep`: seeds times settings, each a run of its own, and what they come to together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from mappa_core.cli.main import blocked
from mappa_core.cli.options import Asked, load_registry, recipe_options
from mappa_core.errors import ConfigError

if TYPE_CHECKING:
    from mappa_core.studies.sweep import Sweep, SweepRun, Swept

FAILED = 2
"""The exit code where a run of the sweep failed."""


@click.command("sweep")
@recipe_options
@click.option(
    "--vary", metavar="KEY=[A, B]", multiple=True, help="Values of a setting, as a YAML list; may be repeated."
)
@click.option("--seeds", metavar="0,1,2", help="Seeds of every setting; 0 unless named.")
@click.option("--folder", metavar="DIR", type=click.Path(path_type=Path), help="Where the sweep lies; new.")
@click.option("--resume", metavar="DIR", type=click.Path(path_type=Path), help="Go on with the sweep in this folder.")
@click.option("--jobs", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time.")
@click.option("--ray", metavar="ADDRESS", help="Run on the machines of this Ray: auto, or HOST:PORT.")
@click.option("--cpus", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="CPUs of a run on Ray.")
@click.option(
    "--gpus", metavar="N", type=click.FloatRange(0), default=0.0, show_default=True, help="GPUs of a run on Ray."
)
@click.option("--quiet", is_flag=True, help="Print only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(
    asked: Asked,
    vary: Sequence[str],
    seeds: str | None,
    folder: Path | None,
    resume: Path | None,
    jobs: int,
    ray: str | None,
    cpus: int,
    gpus: float,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train every combination of settings with every seed, and compare.

    Each is a run of its own, trained by mappa train. What is done is not run again, what was interrupted goes on, and
    what fails is shown and stops nothing else. With --ray every run takes a share of the cluster's machines, which must
    have Mappa installed and share the sweep's folder.

    \b
      mappa sweep --plugin mathchat --seeds 0,1,2 --vary 'train.learning_rate=[2e-4, 5e-4]' train.iterations=20
      mappa sweep --resume runs/sweep-mathchat-tiny-20260101-120000-1a2b
    """
    import msgspec

    from mappa_core.engine.cluster.installed import check_installed
    from mappa_core.studies.sweep import load, swept
    from mappa_core.view.sweep import write_sweep

    if ray is not None:
        check_installed("--ray", ["ray"])
    if resume is None:
        folder, sweep = _begun(asked, vary, seeds, folder)
    else:
        if vary or seeds or folder or asked.plugin or asked.recipe or asked.config_files or asked.words:
            raise ConfigError(
                "--resume goes on with what the sweep began with: leave everything out but --jobs and --ray"
            )
        folder, sweep = resume, load(resume)
    errors = Console(stderr=True)

    def changed(now: Sweep, run: SweepRun) -> None:
        if not (quiet or as_json):
            errors.print(progress(now, run), highlight=False, markup=False, soft_wrap=True)

    try:
        done = asyncio.run(_run(folder.resolve(), sweep, changed, jobs=jobs, ray=ray, cpus=cpus, gpus=gpus))
    except (KeyboardInterrupt, SystemExit, ConfigError):
        click.echo(f"nothing is lost; go on with: mappa sweep --resume {folder}", err=True)
        raise
    found = swept(folder, done)
    page = write_sweep(folder, found, told(found))
    if as_json:
        click.echo(msgspec.json.encode(as_document(folder, found)).decode())
    else:
        show(Console(), found, page)
    if done.at("failed"):
        raise click.exceptions.Exit(FAILED)


async def _run(
    folder: Path,
    sweep: Sweep,
    changed: Callable[[Sweep, SweepRun], None],
    *,
    jobs: int,
    ray: str | None,
    cpus: int,
    gpus: float,
) -> Sweep:
    """Run what is not done, here or on a Ray."""
    from mappa_core.studies.sweep import Running, here

    if ray is None:
        return await Running(folder, sweep, jobs=jobs, changed=changed, launch=here).run()
    from mappa_core.engine.cluster.programs import Programs

    programs = await Programs.open(ray, folder, jobs=jobs, cpus=cpus, gpus=gpus)
    try:
        return await Running(folder, sweep, jobs=jobs, changed=changed, launch=programs.run).run()
    finally:
        await programs.close()


def _begun(asked: Asked, vary: Sequence[str], seeds: str | None, folder: Path | None) -> tuple[Path, Sweep]:
    """Compose, check and write down a new sweep."""
    from mappa_core.store.folder import new_name
    from mappa_core.studies.sweep import arms_of, begin

    if asked.name is not None:
        raise ConfigError("--name names one run; name the folder of a sweep with --folder DIR")
    registry = load_registry()
    composed = asked.compose(registry)
    if folder is None:
        folder = Path(composed.config.run.root) / f"sweep-{new_name(composed.plugin, composed.recipe)}"
    numbers = _seeds(seeds) if seeds else (composed.config.seed,)
    arms = arms_of(vary)
    return folder, begin(folder, composed, registry, arms=arms, seeds=numbers, blocked=blocked())


def _seeds(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"--seeds {text}: write whole numbers, for example --seeds 0,1,2")
    return tuple(int(word) for word in words)


def progress(sweep: Sweep, run: SweepRun) -> str:
    """A line on a run that started or ended."""
    done = f"{len(sweep.at('done'))} of {len(sweep.runs)} done"
    error = "" if run.error is None else f": {run.error}"
    return f"{run.folder} ({sweep.setting(run)}, seed {run.seed}) {run.status}{error}  [{done}]"


def told(found: Swept) -> list[str]:
    """What the figures stand on, and which setting is chosen by what."""
    from mappa_core.cli.compare import notes

    if found.compared is None:
        return []
    lines = notes(found.compared)
    if len(found.compared.arms) < 2:
        return lines
    if found.chosen is None:
        return [
            *lines,
            "No setting is named the best: the tasks that are reported must not choose it. checkpoint.best=true sets "
            "tasks apart for that.",
        ]
    name, mean = found.chosen
    return [*lines, f"Chosen on other tasks, with a mean of {mean:.1%} there: {name}. Its figures are those above."]


def show(console: Console, found: Swept, page: Path) -> None:
    """The arms, what is between them, what failed, and where everything lies."""
    from mappa_core.cli import compare

    if found.compared is not None:
        compare.show(console, found.compared, told(found))
    for run in found.sweep.at("failed"):
        line = f"failed   {run.folder} ({found.sweep.setting(run)}, seed {run.seed}): {run.error}"
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if found.sweep.at("failed"):
        again = f"again    mappa sweep --resume {page.parent}"
        console.print(again, highlight=False, markup=False, soft_wrap=True)
    console.print(f"report   {page}", highlight=False, markup=False, soft_wrap=True)


def as_document(folder: Path, found: Swept) -> dict[str, Any]:
    """A sweep as JSON values: how every run stands, the comparison (null before a run is done), and what was chosen."""
    import msgspec

    from mappa_core.cli import compare

    chosen = None if found.chosen is None else {"setting": found.chosen[0], "selection_mean": found.chosen[1]}
    return {
        "folder": str(folder),
        **msgspec.to_builtins(found.sweep),
        "compared": None if found.compared is None else compare.as_document(found.compared),
        "chosen": chosen,
    }
