"""`mappa doctor`: check what is installed and usable. Keys are shown by name, never by value."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from rich.text import Text

from mappa.cli.common_options import json_option
from mappa.cli.console import Console, break_line
from mappa.cli.options import load_registry
from mappa_core.config.schema import RunSection
from mappa_core.hookspecs import CheckResult
from mappa_core.plugins import CORE_PACKAGE, KIND_NAMES, Registry, first_party_packages

API_KEY_VARIABLES = ("GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "WANDB_API_KEY")
"""Environment variables with keys of providers; options of offers that end in `_env` add more."""
_INDENT = 29
"""Columns before what is said of a check."""

CheckResults = Mapping[str, Mapping[str, CheckResult]]


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Show what is installed and usable here; keys only by name."""
    results = run_checks(load_registry())
    if as_json:
        plain = {area: {name: asdict(check) for name, check in checks.items()} for area, checks in results.items()}
        click.echo(json.dumps(plain, ensure_ascii=False))
    else:
        show_checks(results)


def show_checks(results: CheckResults) -> None:
    console = Console()
    for area, checks in results.items():
        click.secho(area, bold=True)
        for name, check in checks.items():
            mark = click.style("yes" if check.ok else "no ", fg="green" if check.ok else "yellow")
            lines = break_line(Text(check.detail), console.width - _INDENT) if console.is_terminal else [check.detail]
            click.echo(f"  {mark}  {name:<22}" + f"\n{' ' * _INDENT}".join(map(str, lines)))


def run_checks(registry: Registry) -> CheckResults:
    """Run the checks of core and of all plugins, by area and name."""
    return {
        "machine": dict(_machine()),
        **{area.name: area.run(registry) for plugin in registry.plugins.values() for area in plugin.checks},
        "keys": {name: _key(name) for name in _key_names(registry)},
        "runs": {RunSection().root: _disk(Path(RunSection().root))},
        "plugins": dict(_plugins(registry)),
    }


def _machine() -> Iterator[tuple[str, CheckResult]]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield CORE_PACKAGE, CheckResult(True, version(CORE_PACKAGE))
    yield "Python", CheckResult(True, platform.python_version())
    yield "platform", CheckResult(sys.platform == "linux", platform.platform())
    yield "cores", CheckResult(True, str(os.cpu_count()))
    yield "memory", CheckResult(True, f"{memory / 2**30:.1f} GiB")


def _key_names(registry: Registry) -> tuple[str, ...]:
    named = set(API_KEY_VARIABLES)
    for kind in KIND_NAMES:
        for offer in (registry.offer(kind, name) for name in registry.names(kind)):
            defaults = {field.name: field.default for field in fields(offer.options)}
            named |= {value for key, value in defaults.items() if key.endswith("_env") and isinstance(value, str)}
    return tuple(sorted(named))


def _key(name: str) -> CheckResult:
    return CheckResult(bool(os.environ.get(name)), "set" if os.environ.get(name) else "not set")


def _disk(folder: Path) -> CheckResult:
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    writable = os.access(existing, os.W_OK | os.X_OK)
    free = shutil.disk_usage(existing).free / 2**30
    access = "writable" if writable else f"no permission to write in {existing}"
    return CheckResult(writable, f"{free:.1f} GiB free, {access}")


def _plugins(registry: Registry) -> Iterator[tuple[str, CheckResult]]:
    for plugin in registry.plugins.values():
        yield plugin.name, CheckResult(True, f"{plugin.package} {plugin.version}")
    for broken in registry.broken.values():
        yield broken.name, CheckResult(False, f"{broken.package} {broken.version}: {broken.reason}")
    for package, offers in _missing_parts().items():
        yield package, CheckResult(False, f"not installed: pip install {package} brings {'; '.join(offers)}")


def _missing_parts() -> Mapping[str, list[str]]:
    """First-party packages that are not installed, and their offers."""
    missing: dict[str, list[str]] = defaultdict(list)
    for kind in (*KIND_NAMES, "commands"):
        by_package: dict[str, list[str]] = defaultdict(list)
        for name, package in first_party_packages(kind).items():
            by_package[package.partition("[")[0]].append(name)
        for package, names in by_package.items():
            try:
                version(package)
            except PackageNotFoundError:
                missing[package].append(f"{kind} {', '.join(names).replace('.', ' ')}")
    return missing
