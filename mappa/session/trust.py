"""The gate between the config of a stored run and the objects that are built of it.

A config names code (a plugin of one file, too), programs, hosts, paths and environment variables, and a run may come
from anybody. What only looks
at a run reads its config as data. What plays or judges again gets it here alone: it is built where this user made the
run or trusts it, or where all that could run or reach anything is as installed, or as the user says now.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from mappa.config.compose import PLUGIN, ComposedConfig, StoredConfig, compose_installed, read_stored
from mappa.config.plugin_files import MAX_FILE_BYTES, add_plugin, file_of, load_recorded
from mappa.config.resume_diff import leaf_value
from mappa.config.yaml_io import COMMAND_LINE, format_scalar
from mappa.store.folder import FILES
from mappa.store.marks import is_trusted, remember_trust
from mappa_core.config.layers import DEFAULT_ORIGIN, SettingsNode, is_leaf, with_origin
from mappa_core.errors import ConfigError, InputError, RunError
from mappa_core.plugins import Registry
from mappa_core.tools.file_archive import archived_path, open_content

log = structlog.get_logger()

KeyPath = tuple[str, ...]

HARMLESS: tuple[KeyPath, ...] = (
    ("seed",), ("run", "name"), ("sampling",), ("train",), ("eval",), ("estimator", "use"),
    ("checkpoint", "every"), ("checkpoint", "keep"), ("checkpoint", "best"), ("checkpoint", "dtype"),
)  # fmt: skip
"""Settings, including everything below them, that build nothing but what is installed and reach nothing. Every other
one is taken to do so, also those that are added to the schema later."""
HARMLESS_NUMBERS: tuple[KeyPath, ...] = (("estimator", "options"),)
"""Settings below which numbers are harmless, and texts, which may name anything, are not."""
MAX_LINES = 60
MAX_CHARACTERS = 300
"""Differing settings that are listed, and characters of each value."""


_ADVICE = (
    "Nothing of it was run or sent. If you know who made it and what these settings do, repeat the command with",
    "--trust, which is remembered as long as they stay as they are. Or say what to run yourself, as KEY=VALUE.",
)


class UntrustedRun(ConfigError):
    """A stored run would run or reach what is not installed, and the user neither made nor trusts it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that would run or reach something else than what is installed; None: it is not set."""

    key: KeyPath
    stored: SettingsNode | None
    installed: SettingsNode | None

    @property
    def counts(self) -> bool:
        """Whether it could run or reach something that is neither installed nor said by the user now."""
        if leaf_value(self.stored) == leaf_value(self.installed) or _is_below(self.key, HARMLESS):
            return False
        if self.stored is None:
            # Left out, a setting has its default.
            return self.installed is not None and self.installed.origin != DEFAULT_ORIGIN
        # Its origin is where it was read, and not yet what the file claims, which could be the command line.
        is_given = self.stored.origin == COMMAND_LINE
        return not is_given and not (_is_below(self.key, HARMLESS_NUMBERS) and _is_number(self.stored))

    def __str__(self) -> str:
        name = ".".join(format_scalar(part) for part in self.key)
        return f"{name}: {_format_value(self.stored)} | {_format_value(self.installed)}"


def restore_trusted(
    registry: Registry,
    run: Path,
    overrides: Sequence[str] = (),
    *,
    recorded: Sequence[str] = (),
    trust: bool = False,
) -> ComposedConfig:
    """Compose the config of the run in the folder `run` (or of its file) with `overrides`, what the user says now, laid
    over what the run `recorded` after it wrote its config; all as `key=value`.

    Args:
        trust: build it whatever it names, and remember that for this run and this config.

    Raises:
        UntrustedRun: the user neither made nor trusts the run, and it differs in what it would run or reach; the
            message lists the settings. Nothing of it was imported, built or sent.
        RunError, ConfigError, PluginError: it is no run, or its config cannot be composed.
    """
    stored = read_stored(run)
    is_file_absent = _is_file_absent(registry, stored)
    if stored.is_of_objects and stored.plugin not in registry.plugins:
        raise ConfigError(
            f"{stored.path.parent} was made of objects of a script or a notebook, which no package offers: go on with "
            f"it there, by mappa.train(resume={str(stored.path.parent)!r}, workflow=…, tasks=…, coach=…) or mappa.judge"
        )
    if not is_file_absent:
        registry.plugin(stored.plugin)
    stored.read(overrides, recorded)
    if not is_trusted(stored.path, stored.text):
        if trust:
            _remember(stored.path, stored.text)
        elif differences := tuple(find_differences(registry, stored, overrides, recorded)):
            is_installed = not is_file_absent and stored.recipe in registry.plugin(stored.plugin).recipes
            beside = f"that of {stored.plugin}/{stored.recipe} as installed" if is_installed else "the default"
            raise UntrustedRun(_describe(stored, differences, beside))
    return stored.resolve(registry, overrides, recorded)


def add_own_plugin(registry: Registry, run: Path, *, trust: bool = False) -> Registry:
    """The registry for a stored run: with the plugin that it was made with, where that is a file, not in the registry
    already, and the user made or trusts the run (or `trust`). Otherwise nothing of it is run: `restore_trusted` says
    why. Raises PluginError if the file is missing or another one by now, or holds no plugin."""
    stored = read_stored(run)
    if stored.file is None or not _is_file_absent(registry, stored):
        return registry
    if not trust and not is_trusted(stored.path, stored.text):
        return registry
    archive = stored.path.parent / FILES
    copy = archived_path(archive, stored.file.sha256)
    return add_plugin(registry, load_recorded(stored.file, _read_kept(archive, stored.file.sha256), copy))


def _read_kept(archive: Path, sha256: str) -> str | None:
    """A text that a run keeps; None if it does not."""
    try:
        with open_content(archive, sha256) as content:
            return content.read(MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None


def _is_file_absent(registry: Registry, stored: StoredConfig) -> bool:
    """Whether a run was made with the plugin of a file that nobody loaded; under its name may be an installed one."""
    return stored.file is not None and file_of(registry, stored.plugin) is None


def restore_resumed(
    registry: Registry, run: Path, overrides: Sequence[str], *, trust: bool = False
) -> tuple[ComposedConfig, ComposedConfig]:
    """The config of a run that goes on: as it was, and with `overrides`. Raises as `restore_trusted`."""
    now = restore_trusted(registry, run, overrides, trust=trust)
    return read_stored(run).resolve(registry), now


def require_trusted(file: Path, text: str, shown: Sequence[str], *, trust: bool = False) -> None:
    """Check a file with `text` that says, beside a config, what to run or reach; `shown` are lines of what it says.
    `trust` and errors are as of `restore_trusted`; nothing installed stands beside it, so that it is not compared."""
    if is_trusted(file, text):
        return
    if trust:
        _remember(file, text)
        return
    lines = (f"  {_shorten(format_scalar(line))}" for line in shown)
    raise UntrustedRun(
        "\n".join((f"{file} was not written here by you. It says what to run or reach:", *lines, *_ADVICE))
    )


def _remember(file: Path, text: str) -> None:
    try:
        remember_trust(file, text)
    except RunError as error:
        log.warning("trust.not_remembered", file=str(file), error=str(error))


def find_differences(
    registry: Registry, stored: StoredConfig, overrides: Sequence[str], recorded: Sequence[str] = ()
) -> Iterator[Difference]:
    """List the settings by which a stored config would run or reach something else than the installed recipe of its
    name, without those that `overrides` give. Values are compared as they stand: no options are built of them."""
    if stored.file is not None and _is_file_absent(registry, stored):
        yield Difference((PLUGIN,), with_origin(stored.file.place, str(stored.path)), None)
    installed = _compose_baseline(registry, stored, overrides)
    here = {} if installed is None else dict(_leaves(installed.settings))
    there = dict(_leaves(stored.lay_over(overrides, recorded)))
    # Nothing can be built of an offer that is not installed, and without it the defaults of its options are not known.
    absent = () if installed is None else tuple((*_split(offer.key), "options") for offer in installed.missing_offers)
    for key in dict.fromkeys((*there, *here)):
        difference = Difference(key, there.get(key), _without_copy(here.get(key), stored.path))
        if difference.counts and not _is_below(key, absent) and not _is_replaced(difference, there, here):
            yield difference


def _without_copy(leaf: SettingsNode | None, stored: Path) -> SettingsNode | None:
    """None for a value that was copied from the stored config for want of one, and so is not installed."""
    return None if leaf is not None and leaf.origin.startswith(f"{stored}:") else leaf


def _compose_baseline(registry: Registry, stored: StoredConfig, overrides: Sequence[str]) -> ComposedConfig | None:
    """What is installed with what the user says now. Where that is no config, as overrides may be of what only the
    stored one chooses, what is installed; None where that is none either, so that every setting differs."""
    for words in (overrides, ()):
        try:
            return compose_installed(registry, stored, words)
        except InputError:
            continue
    return None


def _leaves(node: SettingsNode, key: KeyPath = ()) -> Iterator[tuple[KeyPath, SettingsNode]]:
    """Leaves with their keys in parts: joined by dots, two keys of a mapping of free names could be one."""
    if is_leaf(node):
        yield key, node
        return
    inside = enumerate(node.content) if isinstance(node.content, tuple) else node.fields.items()
    for name, child in inside:
        yield from _leaves(child, (*key, str(name)))


def _split(key: str) -> KeyPath:
    return tuple(key.split("."))


def _is_below(key: KeyPath, places: Sequence[KeyPath]) -> bool:
    return any(key[: len(place)] == place for place in places)


def _is_replaced(
    difference: Difference, there: Mapping[KeyPath, SettingsNode], here: Mapping[KeyPath, SettingsNode]
) -> bool:
    """Whether it is an option of an installed offer in whose place another stands, whose name is listed."""
    key = difference.key
    if difference.stored is not None or "options" not in key:
        return False
    use = (*key[: key.index("options")], "use")
    return bool(leaf_value(there.get(use)) != leaf_value(here.get(use)))


def _is_number(leaf: SettingsNode | None) -> bool:
    value = leaf_value(leaf)
    return all(
        part is None or isinstance(part, int | float) for part in (value if isinstance(value, list) else [value])
    )


def _format_value(leaf: SettingsNode | None) -> str:
    if leaf is None:
        return "not set"
    return _shorten(format_scalar(leaf.plain))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text):,} characters)"


def _describe(stored: StoredConfig, differences: Sequence[Difference], beside: str) -> str:
    folder = stored.path.parent
    lines = [f"  {difference}" for difference in differences[:MAX_LINES]]
    if len(differences) > MAX_LINES:
        lines.append(f"  and {len(differences) - MAX_LINES:,} more: read {stored.path}")
    return "\n".join(
        [
            f"{folder} was not made here by you, and what it would run or reach is not what is installed.",
            f"setting: its value | {beside}",
            *lines,
            *_ADVICE,
            f"Looking at it needs no trust: mappa runs show {shlex.quote(str(folder))}",
        ]
    )
