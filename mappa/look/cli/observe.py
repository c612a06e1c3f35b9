"""`mappa observe`: diagnose a team by its coach's verdicts, without training."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mappa.cli.announce import announce_providers, announce_sandboxes
from mappa.cli.common_options import json_option, quiet_option
from mappa.cli.console import Console, echo
from mappa.cli.options import ConfigArguments, load_registry, recipe_options, trust_option
from mappa.look.cli.observe_log import LogObserving, observe_log_files
from mappa.look.cli.pulled_logs import is_address, open_logs
from mappa.look.cli.verdict_tables import check_answered
from mappa.store.folder import is_run_folder, list_run_folders
from mappa_core import ConfigError, RunError, Split

if TYPE_CHECKING:
    from mappa.config.compose import ComposedConfig
    from mappa.look.coach_eval.metrics import VerdictCounts
    from mappa.look.observe import Diagnosis
    from mappa_core import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveRequest:
    """The options of the command. `logs` are files, folders, patterns of names and addresses of tracers; `run` is that
    of RUN. `arguments` have the words that are settings."""

    arguments: ConfigArguments
    logs: Sequence[str]
    run: Path | None
    coach: str | None
    follow: bool
    otlp: int | None
    root: Path | None
    split: Split | None
    iteration: int | None
    examples: int
    trust: bool
    quiet: bool
    as_json: bool

    @property
    def is_about_log(self) -> bool:
        """Whether plays of LOGs, or those that come over OTLP, are observed."""
        return bool(self.logs) or self.otlp is not None

    def check(self) -> None:
        """Raises ConfigError for options that do not go together."""
        names_recipe = bool(self.arguments.plugin or self.arguments.recipe or self.arguments.config_files)
        chooses_rollouts = self.split is not None or self.iteration is not None
        is_for_log = self.coach is not None or self.follow or self.root is not None
        if self.is_about_log:
            if names_recipe or chooses_rollouts:
                raise ConfigError(
                    "a LOG has no recipe: leave out --plugin, --recipe, --config, --split and --iteration"
                )
        elif self.run is not None:
            if is_for_log:
                raise ConfigError("--coach, --follow and --root are about a LOG: a RUN is judged by mappa judge")
            if names_recipe or self.arguments.words:
                raise ConfigError(
                    "observing a RUN plays nothing: leave out --plugin, --recipe, --config, --name and settings"
                )
        else:
            if is_for_log:
                raise ConfigError(
                    "--coach, --follow and --root are about a LOG: a recipe has a coach of its own, and run.root"
                )
            if chooses_rollouts:
                raise ConfigError("--split and --iteration choose from what is recorded: name a RUN with them")


@click.command("observe")
@partial(recipe_options, words="[RUN|LOG...] [KEY=VALUE]...", are_paths=True)
@click.option("--coach", metavar="OFFER", help="Who judges the plays of a LOG; `evidence` by default, needs no key.")
@click.option("--follow", is_flag=True, help="Go on for as long as LOG grows, until Ctrl-C.")
@click.option("--otlp", metavar="PORT", type=click.IntRange(0, 65535), help="Follow what comes over OTLP/HTTP; 0: any.")
@click.option("--root", metavar="DIR", type=click.Path(path_type=Path), help="Folder of the run of a LOG; else runs.")
@click.option("--split", type=click.Choice(["train", "eval"]), help="Which rollouts of RUN; train if there are any.")
@click.option("--iteration", metavar="N", type=click.IntRange(0), help="Those after N iterations; else the last ones.")
@click.option("--examples", metavar="N", type=click.IntRange(0), default=3, show_default=True, help="Actions to show.")
@trust_option
@quiet_option
@json_option
def command(arguments: ConfigArguments, **options: Any) -> None:
    """Show which agent fails, how often and why; trains nothing.

    A LOG is what a team of any framework wrote: a file, a folder or a pattern of names. Its plays become a run, each is
    judged once by the coach, and the same command again reads and judges what came since. Options of the coach are
    KEY=VALUE; what a log needs beyond that is an option of mappa import, which the run keeps:

    \b
      mappa observe team.jsonl
      mappa observe logs/ --coach openai model=… --follow
      mappa observe 'phoenix://localhost:6006/PROJECT?since=1d'
      mappa observe --otlp 4318

    A LOG may be the address of a tracer, as mappa import takes it. With --otlp it is what a team of this machine sends
    as it plays: OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318.

    With RUN, the folder of a run, it looks at what is recorded there and plays nothing. With neither it plays a recipe
    with its coach, and also shows which files that agents hand on were missing or broken. Policies may be behind an API
    (policies.default.kind=api); then it needs no GPU and no torch.
    """
    asked = _read_request(arguments, options)
    asked.check()
    if asked.is_about_log:
        _observe_log(asked)
    elif asked.run is not None:
        _observe_run(asked, asked.run)
    else:
        _observe_recipe(asked)


def _read_request(arguments: ConfigArguments, options: Mapping[str, Any]) -> ObserveRequest:
    """Tell a RUN or LOGs from settings among the words of the command. Raises ConfigError for a LOG beside --otlp, and
    RunError for a folder of several runs."""
    words = [word for word in arguments.settings if is_address(word) or "=" not in word or Path(word).exists()]
    if options["otlp"] is not None and words:
        raise ConfigError(f"--otlp is a log of its own: leave out {', '.join(words)}")
    places = [word if is_address(word) else str(_find_only_run(Path(word))) for word in words]
    is_run = len(places) == 1 and not is_address(words[0]) and is_run_folder(Path(places[0]))
    return ObserveRequest(
        arguments=replace(arguments, settings=tuple(word for word in arguments.settings if word not in words)),
        logs=() if is_run else places,
        run=Path(places[0]) if is_run else None,
        **options,
    )


def _find_only_run(path: Path) -> Path:
    """The run in a folder that holds one and is none. Raises RunError where it holds several."""
    inside = () if is_run_folder(path) else list_run_folders(path)
    if len(inside) > 1:
        raise RunError(f"{path} is not a run folder, it holds some: open one of them, such as {inside[-1]}")
    return inside[0] if inside else path


def _observe_log(asked: ObserveRequest) -> None:
    """Judge what is new in the logs, and show what came of all of it; with `--follow` or `--otlp` for as long as they
    grow."""
    root = Path("runs") if asked.root is None else asked.root
    with open_logs(asked.logs, root, otlp=asked.otlp) as logs:
        observing = LogObserving(
            paths=logs.paths,
            refresh=logs.refresh,
            coach=asked.coach,
            settings=asked.arguments.settings,
            root=root,
            name=asked.arguments.name,
            examples=asked.examples,
            trust=asked.trust,
        )
        follow = asked.follow or asked.otlp is not None
        observe_log_files(observing, follow=follow, quiet=asked.quiet, as_json=asked.as_json)


def _observe_run(asked: ObserveRequest, run: Path) -> None:
    """Show what is recorded in a run."""
    from mappa.look.observe import observe_run

    _show(observe_run(run, split=asked.split, iteration=asked.iteration, examples=asked.examples), asked)


def _observe_recipe(asked: ObserveRequest) -> None:
    """Play a recipe with its coach, and show what came of it. Raises GuardStop if the coach answered too little."""
    registry = load_registry()
    composed = asked.arguments.compose(registry, "eval.coach=true")
    diagnosis = _play_recipe(registry, composed, asked.examples, quiet=asked.quiet or asked.as_json)
    _show(diagnosis, asked)
    check_answered([_counts(diagnosis)], composed.config.coach.max_missing)


def _play_recipe(registry: Registry, composed: ComposedConfig, examples: int, *, quiet: bool) -> Diagnosis:
    from mappa.cli.progress import rollout_bar
    from mappa.look.observe import observe_recipe

    errors = Console(stderr=True)
    with rollout_bar(errors, quiet=quiet) as progress:
        return asyncio.run(
            observe_recipe(
                composed,
                registry,
                examples=examples,
                on_providers=lambda providers: announce_providers(errors, providers),
                on_sandboxes=lambda sandboxes: announce_sandboxes(errors, sandboxes, quiet=quiet),
                on_start=progress.start,
                on_trajectory=progress.on_rollout_end,
            )
        )


def _show(diagnosis: Diagnosis, asked: ObserveRequest) -> None:
    from mappa.look.cli.diagnosis_tables import diagnosis_json, show_diagnosis

    if asked.as_json:
        echo(diagnosis_json(diagnosis))
    else:
        show_diagnosis(Console(), diagnosis)


def _counts(diagnosis: Diagnosis) -> VerdictCounts:
    from mappa.look.coach_eval.metrics import VerdictCounts

    total = diagnosis.coach.total
    return VerdictCounts(
        verdicts=total.verdicts,
        scored=total.scored,
        abstained=total.abstained,
        failed=total.failed,
        replayed=total.replayed,
        reasons=diagnosis.coach.reasons,
    )
