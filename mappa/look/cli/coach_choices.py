"""Coaches that a command line names: their offers and options, and the coaches built of them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from mappa.cli.announce import announce_providers
from mappa.cli.console import Console
from mappa.config.compose import build_options
from mappa.config.validate import field_hints
from mappa.config.yaml_io import parse_overrides
from mappa.rollout.named_coach import NamedCoach
from mappa.session.runtime import attach_cassette, open_batches
from mappa_core import Coach, ConfigError
from mappa_core.config.schema import CoachSection
from mappa_core.files import read_named_file
from mappa_core.plugins import Registry, did_you_mean

RECORDED = "recorded"
"""The offer of verdicts from a file."""

MAX_CALIBRATION_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachChoice:
    """A coach to evaluate: its name in the report, its offer, and the offer's options."""

    name: str
    offer: str
    options: Any


def parse_coaches(registry: Registry, coaches: Sequence[str], settings: Sequence[str]) -> list[CoachChoice]:
    """Parse the coaches of `--coach` with their options from `NAME.key=value` words; those of a single coach may leave
    out its name.

    Raises:
        ConfigError, PluginError: a name occurs twice, an offer or option is unknown, or an option belongs to no coach.
    """
    offers: dict[str, str] = {}
    for word in coaches:
        name, _, offer = word.rpartition("=")
        name = name or offer
        if name in offers:
            raise ConfigError(f"--coach {word}: {name} is named already; give it another name: --coach NAME={offer}")
        if "." in name:
            raise ConfigError(f"--coach {word}: {name!r} has a dot in it; give it a name: --coach NAME={offer}")
        offers[name] = offer
    tree = parse_overrides(_add_name(registry, offers, settings))
    for name in tree.fields:
        if name not in offers:
            raise ConfigError(
                f"{name}: no --coach is named so, and options are NAME.key=value.{did_you_mean(name, offers)}"
            )
    return [
        CoachChoice(name=name, offer=offer, options=build_options(registry, "coaches", offer, tree, name))
        for name, offer in offers.items()
    ]


def _add_name(registry: Registry, offers: Mapping[str, str], settings: Sequence[str]) -> Sequence[str]:
    """Put the name of a single coach before the words that begin with one of its options."""
    if len(offers) != 1:
        return settings
    ((name, offer),) = offers.items()
    own = field_hints(registry.offer("coaches", offer).options).keys() - {name}
    return [f"{name}.{word}" if re.split("[.=]", word)[0] in own else word for word in settings]


def recorded_judges(registry: Registry, file: Path) -> list[CoachChoice]:
    """A coach `recorded` for each judge of a file. Raises InputError for a file that is not of verdicts."""
    from mappa.look.coach_eval.recorded import list_judges

    choices = []
    for judge in list_judges(file):
        tree = parse_overrides([f"judge.path={file}"])
        options = replace(build_options(registry, "coaches", RECORDED, tree, "judge"), judge=judge or None)
        choices.append(CoachChoice(name=judge or file.name, offer=RECORDED, options=options))
    return choices


def calibrated_jury(registry: Registry, file: Path) -> CoachChoice:
    """The ensemble of a calibration file, named `jury`. Raises ConfigError for a file that is none.

    Only the members are read here: the ensemble itself, of a package that need not be installed, reads the rest.
    """
    try:
        content = read_named_file(file.expanduser(), max_bytes=MAX_CALIBRATION_BYTES)
        members = msgspec.json.decode(content, type=_CalibrationFile).members
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--jury: {file} is none of mappa coach calibrate: {error}") from None
    words = [
        "jury.combine=calibrated",
        f"jury.calibration={json.dumps(str(file))}",
        f"jury.members={json.dumps(members)}",
    ]
    options = build_options(registry, "coaches", "ensemble", parse_overrides(words), "jury")
    return CoachChoice(name="jury", offer="ensemble", options=options)


class _CalibrationFile(msgspec.Struct):
    members: list[dict[str, Any]]


@asynccontextmanager
async def open_coaches(
    registry: Registry,
    chosen: Sequence[CoachChoice],
    errors: Console,
    *,
    repeats: int = 1,
    cassette: Path | None = None,
) -> AsyncIterator[list[tuple[NamedCoach, ...]]]:
    """Build and announce the coaches, each once for every repeat; closes them at the end of the context. With a
    `cassette` each repeat has a file of its own (`x.db`, `x-2.db`), as a replayed verdict is no repeat. Batches are
    recorded beside the cassette; without one in the current folder."""
    files = ExitStack()
    async with AsyncExitStack() as stack:
        stack.enter_context(files)
        judges: list[tuple[NamedCoach, ...]] = []
        for choice in chosen:
            built: list[Coach] = []
            for _ in range(repeats if cassette is not None else 1):
                built.append(registry.build("coaches", choice.offer, choice.options))
                stack.push_async_callback(built[-1].close)
            named = [NamedCoach(name=choice.name, coach=coach) for coach in built]
            judges.append(tuple(named[min(number, len(named) - 1)] for number in range(repeats)))
        for number in range(repeats if cassette is not None else 0):
            assert cassette is not None
            path = cassette if number == 0 else cassette.with_stem(f"{cassette.stem}-{number + 1}")
            section = replace(CoachSection().cassette, path=str(path))
            files.enter_context(attach_cassette([one[number].coach for one in judges], section, cassette.parent))
        coaches = dict.fromkeys(judge.coach for one in judges for judge in one)
        folder = Path.cwd() if cassette is None else cassette.parent
        open_batches(coaches, CoachSection().cassette, folder)
        asked = [provider for one in judges for provider in one[0].coach.providers]
        announce_providers(errors, list(dict.fromkeys(asked)))
        yield judges
