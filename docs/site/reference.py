"""Writes docs/reference/ from the code: `python docs/site/reference.py`, or with a folder's name to that folder. A test
holds the pages against it."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click
from docstrings import dataclass_docs, doc_of, exported_names, field_docs, first_sentence, table_cell

from mappa import runs
from mappa.cli.command_table import COMMANDS
from mappa.store import folder
from mappa.store.schema import Database
from mappa_core import errors, experience, hookspecs, protocols, records
from mappa_core.config.schema import SETTING_KEY, RunConfig, Use
from mappa_core.plugins import KIND_NAMES, KINDS_WITH_HOOK, Registry, load_plugins

front = importlib.import_module("mappa.cli.main")
FOLDER = Path(__file__).parents[1] / "reference"
OWN = (
    "look", "anthropic", "dsbench", "engine", "gateway", "gemini", "mathchat", "mcp", "openai",
    "reasoning-gym", "sandbox", "sandboxfusion", "trackers",
)  # fmt: skip
"""The application and the project's own plugins; what else is installed has pages of its own."""
PUBLIC = {
    "mappa_core": ("coach", "data", "engine", "sandbox", "transport", "workflow"),
    "mappa": ("commands", "judging", "runs", "sessions", "statistics", "testing"),
}
"""The two fronts, each with the modules that export names beside it."""
TOOLS = ("codec", "files", "redaction", "safe_arithmetic", "safe_json", "safe_sqlite", "safe_walk")
"""Modules of core that are public as they are."""
PLUGINS_WITH_COMMANDS = ("dsbench", "mathchat", "sandboxfusion")
WIDTH = 100
HELP = front.cli.context_settings["help_option_names"]
MADE = "<!-- Made from the code by docs/site/reference.py: change it there. -->"


def pages() -> Mapping[str, str]:
    """Every page of the reference by the name of its file."""
    registry = load_plugins(only=OWN)
    if registry.broken:
        raise SystemExit(f"install all of the project's plugins first: {', '.join(registry.broken)} cannot be loaded")
    made = {
        "config.md": config_page(),
        "offers.md": offers_page(registry),
        "hooks.md": hooks_page(),
        "cli.md": cli_page(),
        "exit-codes.md": exit_page(),
        "public.md": public_page(),
        "store.md": store_page(),
    }
    return {name: _told_made(text) for name, text in made.items()}


def _told_made(text: str) -> str:
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{MADE}\n\n{rest.rstrip()}\n"


def config_page() -> str:
    """Every key of a run."""
    top = [field for field in fields(RunConfig) if _section(_hints(RunConfig)[field.name]) in (None, Use)]
    parts = ["# Settings", _CONFIG_INTRO, _table(RunConfig, top)]
    for field in fields(RunConfig):
        inner = _section(_hints(RunConfig)[field.name])
        if inner is not None and inner is not Use:
            parts += [f"## {field.name}", *_section_parts(inner, _place(field, _hints(RunConfig)[field.name]))]
    return "\n\n".join(filter(None, parts))


_CONFIG_INTRO = """\
Every key that a recipe, a file given with `--config`, or a `key=value` word may set, with its default. A key with
`NAME` stands once for every name of yours. `mappa config` prints the values of a run, each with who set it; unknown
keys and wrong types are refused with the layer named. A choice (`use`, `options`) takes an [offer](offers.md) and its
options. A layer that names another `use`, or `use` and `options` together, writes the choice anew: no option of the
layers below remains. One that names options alone changes these and keeps the others."""


def _section_parts(section: type, place: str) -> Iterator[str]:
    hints = _hints(section)
    said = doc_of(section)
    if said:
        yield said
    plain = [field for field in fields(section) if _section(hints[field.name]) in (None, Use)]
    if plain:
        yield _table(section, plain, place)
    for field in fields(section):
        inner = _section(hints[field.name])
        if inner is not None and inner is not Use:
            here = f"{place}.{_place(field, hints[field.name])}"
            yield f"### {here}"
            yield from _section_parts(inner, here)


def _place(field: Field[Any], hint: Any) -> str:
    name = _name(field)
    return f"{name}.NAME" if get_origin(hint) is dict else name


def _section(hint: Any) -> type | None:
    """The dataclass that settings of this type hold, if any; of a mapping or list, that of its values."""
    for part in (hint, *get_args(hint)):
        if isinstance(part, type) and is_dataclass(part):
            return part
    return None


def offers_page(registry: Registry) -> str:
    """Everything that core, the application and the project's plugins offer, with options."""
    parts = ["# Offers", _OFFERS_INTRO]
    for kind, noun in KIND_NAMES.items():
        parts.append(f"## {noun.capitalize()}: `{_CHOSEN[kind]}`")
        for plugin in registry.plugins.values():
            for name, offer in plugin.offers[kind].items():
                parts.append(f"### {name} {{ #{kind}-{name} }}")
                if kind == "transports":
                    parts.append(f"From `{plugin.package}`: its options are those of its [coach](#coaches-{name}).")
                    continue
                parts += [
                    f"From `{plugin.package}`.",
                    doc_of(offer.options),
                    _table(offer.options, fields(offer.options)),
                ]
    return "\n\n".join(filter(None, parts))


_OFFERS_INTRO = """\
What a recipe can choose by `use:`, and what may stand under `options:`. `mappa plugins` lists what is installed on a
machine, other people's plugins included. `???` is a value that must be given."""
_CHOSEN = {
    "tasks": "tasks.use",
    "workflows": "workflow.use",
    "tools": "tools.NAME.use",
    "coaches": "coach.use",
    "transports": "coach.use or policies.NAME.use",
    "policies": "policies.NAME.use, with kind: api",
    "shapers": "shapers",
    "estimators": "estimator.use",
    "prompt_optimizers": "prompts.use",
    "losses": "loss.use",
    "engines": "engine.use",
    "trackers": "trackers",
}


def hooks_page() -> str:
    """The doors, what must be handed over at each, and the values that pass through."""
    parts = ["# Hooks and protocols", _HOOKS_INTRO, "## What a hook hands over", _source(hookspecs.Offer)]
    for kind in KINDS_WITH_HOOK:
        hook = getattr(hookspecs, f"mappa_{kind}")
        parts += [f"## `mappa_{kind}`", doc_of(hook)]
        names = re.findall(r"[A-Z]\w+", str(inspect.signature(hook).return_annotation).partition("Offer[")[2])
        parts += [_source(getattr(protocols, name)) for name in names]
    for name in ("mappa_recipes", "mappa_checks"):
        parts += [f"## `{name}`", doc_of(getattr(hookspecs, name))]
    shown = "\n".join(parts)
    modules = {inspect.getmodule(one) for one in vars(protocols).values() if inspect.isclass(one)}
    others = [
        one for module in sorted(modules, key=str) for one in _classes(module) if one.__module__ != records.__name__
    ]
    others = [one for one in others if not re.search(rf"^class {one.__name__}\b", shown, re.MULTILINE)]
    parts += ["## What objects work with", *map(_source, others)]
    parts += ["## One iteration as arrays", doc_of(experience), *map(_source, _classes(experience))]
    parts += ["## Values", *map(_source, _classes(records))]
    return "\n\n".join(filter(None, parts))


_HOOKS_INTRO = """\
A plugin is a package with an entry point of the group `mappa` that names a module. The module implements hooks: plain
functions marked with `@hookimpl`, called once at start, that yield offers. What an offer builds has the methods shown
here. All names are imported from `mappa_core`, those for tests from `mappa.testing`."""


def _classes(module: Any) -> list[type]:
    return [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]


def _source(shown: Any) -> str:
    if not inspect.isclass(shown):
        return ""
    return f"<!-- tested: tests/docs/test_reference.py -->\n```python\n{inspect.getsource(shown).rstrip()}\n```"


def public_page() -> str:
    """Every name of the fronts and of the families, with the first sentence that is said of it."""
    parts = ["# Public names", _PUBLIC_INTRO]
    for front_name, families in PUBLIC.items():
        for name in (front_name, *(f"{front_name}.{family}" for family in families)):
            module = importlib.import_module(name)
            parts += _names(module, exported_names(module))
    for module in (importlib.import_module(f"mappa_core.{tool}") for tool in TOOLS):
        parts += _names(module, _defined_names(module))
    return "\n\n".join(parts)


def _names(module: Any, names: Sequence[str]) -> Iterator[str]:
    yield f"## {module.__name__}"
    yield " ".join((inspect.getdoc(module) or "").partition("\n\n")[0].split())
    rows = [f"| `{name}` | {table_cell(first_sentence(module, name))} |" for name in names]
    yield "\n".join(["| name | what it is |", "|---|---|", *rows])


def _defined_names(module: Any) -> list[str]:
    """The public classes and functions that a module defines, in its order."""
    defined = {name: one for name, one in vars(module).items() if inspect.isclass(one) or inspect.isfunction(one)}
    return [name for name, one in defined.items() if not name.startswith("_") and one.__module__ == module.__name__]


_PUBLIC_INTRO = """\
What may be imported: the fronts `mappa_core` and `mappa`, their [families](../families.md), and a few modules of core
that are public as they are. All else may change in any release."""


def cli_page() -> str:
    """What `--help` says of every command of this project."""
    root = click.Context(front.cli, info_name="mappa")
    parts = ["# Commands", _CLI_INTRO]
    for name in (*COMMANDS, *PLUGINS_WITH_COMMANDS):
        parts += _help(front.cli.get_command(root, name), f"mappa {name}", root)
    return "\n\n".join(parts)


_CLI_INTRO = """\
What `mappa COMMAND --help` says. Settings are `key=value` words, after any options. Where a command has `--json` it
prints one JSON object on standard output and nothing else; messages go to standard error."""


def _help(command: click.Command | None, name: str, root: click.Context) -> Iterator[str]:
    assert command is not None
    context = click.Context(
        command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH, help_option_names=HELP
    )
    yield f"## {name}"
    yield f"```text\n{textwrap.dedent(command.get_help(context))}\n```"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _help(command.get_command(context, inner), f"{name} {inner}", root)


def exit_page() -> str:
    """Exit codes, and the errors behind them."""
    rows = re.findall(r"^([\d, ]+?)  +(.+)$", inspect.getdoc(front) or "", re.MULTILINE)
    table = ["| code | means |", "|---|---|", *(f"| {code} | {means} |" for code, means in rows)]
    faults = field_docs(errors)["CallFault"].partition("\n\n")[2]
    return "\n\n".join(
        (
            "# Exit codes and errors",
            "Results go to standard output, messages to standard error.",
            "\n".join(table),
            "## Errors",
            "What Mappa raises on purpose, most of it importable from `mappa_core`. Any other exception is a bug, and "
            "keeps its traceback; one in a plugin's own code is named by the part of the run that it came from.",
            "\n".join(_error_tree(errors.MappaError)),
            "## Why a provider call failed",
            "`CallError.kind` is one of these. " + faults,
        )
    )


def _error_tree(error: type[errors.MappaError], depth: int = 0) -> Iterator[str]:
    """A nested list of `error` and the errors of core that derive from it."""
    yield f"{'    ' * depth}- `{error.__name__}`: {_line(inspect.getdoc(error) or '')}"
    for derived in error.__subclasses__():
        if derived.__module__ == errors.__name__:
            yield from _error_tree(derived, depth + 1)


def _line(text: str) -> str:
    return " ".join(text.split())


def store_page() -> str:
    """What a run leaves on disk."""
    layout = (inspect.getdoc(folder) or "").split("\n\n")
    comment = Path(folder.__file__).with_name("schema.sql").read_text("utf-8").partition("\n\n")[0]
    about = re.sub("^-- ?", "", comment, flags=re.MULTILINE).split("\n\n")
    with tempfile.TemporaryDirectory() as place:
        database = Database.create(Path(place) / "run.db")
        rows = database.rows("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT GLOB 'texts_*'")
        database.close()
    tables = "\n".join(f"{textwrap.dedent(sql).strip()};" for (sql,) in rows)
    return "\n\n".join(
        (
            "# What a run stores",
            _STORE_INTRO,
            f"```text\n{textwrap.dedent(layout[1])}\n```",
            layout[2],
            "## run.db",
            about[0],
            *(f"```text\n{textwrap.dedent(part)}\n```" if part.startswith(" ") else part for part in about[1:]),
            f"```sql\n{tables}\n```",
            "## From Python",
            "`mappa.runs` opens a run without a lock, also while it trains: see [Runs from Python](../runs.md). "
            "What is stored comes back as [values](hooks.md#values).",
            _READER,
            _source_of_reader(),
        )
    )


_STORE_INTRO = """\
A run is a folder. Nothing of it is needed elsewhere, and everything that was finished is in it when a process is
killed."""
_READER = """<!-- uses: runs/NAME -->
```python
from mappa import runs

with runs.open("runs/NAME") as run:
    for row in run.trajectories:
        trajectory = run.trajectory(row.id)
        for step in trajectory.steps:
            verdicts = [verdict.score for verdict in trajectory.verdicts if verdict.step == step.id]
            print(step.agent, step.turn, step.reply.content[:40], verdicts)
```"""


def _source_of_reader() -> str:
    rows = ["| `RunReader` | what it gives |", "|---|---|"]
    for name, member in vars(runs.RunReader).items():
        if name.startswith("_") or not (said := inspect.getdoc(member)):
            continue
        if callable(member):
            arguments = str(inspect.signature(member)).partition(" -> ")[0].replace("'", "")
            name += arguments.replace("(self, ", "(").replace("(self)", "()")
        rows.append(f"| `{table_cell(name)}` | {table_cell(said)} |")
    return "\n".join(rows)


def _table(section: type, shown: Sequence[Field[Any]], place: str = "") -> str:
    """A table of settings."""
    if not shown:
        return ""
    docs, hints = dataclass_docs(section), _hints(section)
    rows = ["| key | type | default | what it is |", "|---|---|---|---|"]
    for field in shown:
        key = f"{place}.{_name(field)}" if place else _name(field)
        kind = _type(hints[field.name])
        default = table_cell(_default(field))
        rows.append(f"| `{key}` | {table_cell(kind)} | `{default}` | {table_cell(docs.get(field.name, ''))} |")
    return "\n".join(rows)


def _name(field: Field[Any]) -> str:
    return str(field.metadata.get(SETTING_KEY, field.name))


def _default(field: Field[Any]) -> str:
    made = field.default_factory() if field.default_factory is not MISSING else field.default
    return "???" if made is MISSING else _value(made)


def _value(value: Any) -> str:
    """As YAML writes it on one line."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = {_name(field): getattr(value, field.name) for field in fields(value)}
        return _value({name: one for name, one in inside.items() if one not in ({}, "???")} or "???")
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return value if value else '""'
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e-3 and value else str(value)


def _type(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", text)
    return (
        re.sub(r"Literal\[([^]]*)\]", lambda names: names[1].replace("'", "").replace(", ", " | "), text)
        .replace("NoneType", "null")
        .replace("Use", "choice")
        .replace("None", "null")
    )


def _hints(owner: type) -> Mapping[str, Any]:
    return get_type_hints(owner)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    target.mkdir(exist_ok=True)
    for name, text in pages().items():
        (target / name).write_text(text, encoding="utf-8")
        print(target / name)
