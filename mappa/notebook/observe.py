"""`mappa.observe`: from logs of a team to whom is to blame."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from mappa.cli.announce import announce_providers
from mappa.cli.console import Console
from mappa.look.cli.verdict_tables import check_answered
from mappa.look.observe_logs import DEFAULT_COACH, LogObservation, observe_logs
from mappa.notebook.objects import CellSettings, CoachLike, read_settings
from mappa.notebook.progress import open_verdict_bar
from mappa.notebook.short_errors import with_short_errors
from mappa.store.folder import is_run_folder
from mappa.training.run import run_to_end
from mappa_core import ConfigError, Verdict

HASH_DIGITS = 8


@with_short_errors
def observe(
    *logs: Path | str,
    coach: CoachLike = DEFAULT_COACH,
    root: Path | str = "runs",
    name: str | None = None,
    examples: int = 3,
    progress: bool = True,
    trust: bool = False,
) -> LogObservation:
    """Read logs of a team that any framework ran, judge its plays and say whom they blame, as `mappa observe` does.

    The logs become a run in `root`. The same call again adds what is new in them, and reads and judges nothing twice.

    Args:
        logs: files, folders or patterns of names, as `"logs/*.jsonl"`.
        coach: as of `train`. A function is another coach once its text has changed.
        root: the folder of runs.
        name: of the run; None derives it from the logs. A run that `mappa import` made keeps its options.
        examples: how many of each agent's lowest-scored actions the result holds.
        progress: False shows nothing but who is sent data.
        trust: add to a run of somebody else.

    Raises:
        InputError: a log cannot be read, which names file, line and key, or the coach cannot be built.
        GuardStop: more verdicts failed than `coach.max_missing` has by default; the same call asks for them again.
    """
    if not logs:
        raise ConfigError('name the logs, as in mappa.observe("logs/*.jsonl")')
    paths = [Path(log) for log in logs]
    for path in paths:
        if is_run_folder(path):
            raise ConfigError(f"{path} is a run and no log: mappa.TrainedRun.read({str(path)!r}).diagnosis looks at it")
    given = _with_hashes(read_settings(coach=coach))
    section = given.sections["coach"]
    judged: set[str] = set()
    with open_verdict_bar(progress, what="plays") as bar:

        def advance(verdict: Verdict) -> None:
            # The bar counts plays, and a play has a verdict for each action.
            play = verdict.step.rpartition("/")[0]
            if play not in judged:
                judged.add(play)
                bar.advance(verdict)

        observed = run_to_end(
            observe_logs(
                given.load_plugins(),
                paths,
                coach=section["use"],
                settings=[f"coach.{key}={json.dumps(value)}" for key, value in section.items() if key != "use"],
                root=Path(root),
                name=name,
                examples=examples,
                trust=trust,
                on_providers=lambda providers: announce_providers(Console(stderr=True), providers),
                on_start=bar.start,
                on_verdict=advance,
            )
        )
    check_answered([observed.verdicts.counts])
    return observed


def _with_hashes(given: CellSettings) -> CellSettings:
    """With a hash of its text in the name of a function: what it judged before its text changed is judged again."""
    use = given.sections["coach"]["use"]
    function = given.plugin.coaches.get(use)
    if function is None:
        return given
    try:
        text = inspect.getsource(function)  # type: ignore[arg-type]  # an object has none
    except (OSError, TypeError):
        return given
    name = f"{use}-{sha256(text.encode()).hexdigest()[:HASH_DIGITS]}"
    section = {**given.sections["coach"], "use": name}
    return replace(given, sections={"coach": section}, plugin=replace(given.plugin, coaches={name: function}))
