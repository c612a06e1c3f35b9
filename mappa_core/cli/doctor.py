"""`mappa doctor`: check what is installed and usable. Keys are shown by name, never by value."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path

import click

from mappa_core.cli.options import load_registry
from mappa_core.config.schema import RunSection
from mappa_core.errors import MappaError
from mappa_core.plugins import CORE_PACKAGE, KIND_NAMES, Registry, first_party_packages
from mappa_core.protocols import Tool
from mappa_core.records import Sandbox, ToolLimits, ToolResult
from mappa_engine.cluster.requirements import INSTALL_COMMAND, REQUIRED_RELEASES, library_problems
from mappa_engine.process_info import installed_version

API_KEY_VARIABLES = ("GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "WANDB_API_KEY")
"""Environment variables with keys of providers; options of offers that end in `_env` add more."""

LOCAL_LIBRARIES = ("torch", "transformers", "safetensors")
"""Libraries that the engine `local` needs."""

IMPORT_PROBE = """
import importlib, json
found = {}
for name in %r:
    try:
        found[name] = {"ok": True, "detail": importlib.import_module(name).__version__}
    except Exception as error:
        found[name] = {"ok": False, "detail": f"{type(error).__name__}: {error}"}
gpus = []
if found["torch"]["ok"]:
    import torch
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        gpus.append(f"{device.name}, {device.total_memory / 2**30:.0f} GiB")
print(json.dumps({"libraries": found, "gpus": gpus}))
"""
"""Runs in its own process, so that a broken driver or library cannot crash the command."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check."""

    ok: bool
    detail: str


CheckResults = Mapping[str, Mapping[str, CheckResult]]


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """Show what is installed and usable here; keys only by name."""
    results = run_checks(load_registry())
    if as_json:
        plain = {area: {name: asdict(check) for name, check in checks.items()} for area, checks in results.items()}
        click.echo(json.dumps(plain, ensure_ascii=False))
    else:
        show_checks(results)


def show_checks(results: CheckResults) -> None:
    """Print one line per check."""
    for area, checks in results.items():
        click.secho(area, bold=True)
        for name, check in checks.items():
            mark = click.style("yes" if check.ok else "no ", fg="green" if check.ok else "yellow")
            click.echo(f"  {mark}  {name:<22}{check.detail}")


def run_checks(registry: Registry) -> CheckResults:
    """Run all checks; returns the results by area and name."""
    libraries, gpus = _libraries()
    return {
        "machine": dict(_machine()),
        "libraries": libraries,
        "gpu": {f"cuda:{index}": CheckResult(True, name) for index, name in enumerate(gpus)}
        or {"cuda": CheckResult(False, "none that torch can use; engines run on the CPU")},
        "cluster": dict(_cluster()),
        "engines": dict(_engines(registry, libraries)),
        "sandboxes": dict(_sandboxes()),
        "tools": {"python": _python_tool(registry)},
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


def _libraries() -> tuple[dict[str, CheckResult], list[str]]:
    program = [sys.executable, "-c", IMPORT_PROBE % (LOCAL_LIBRARIES,)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        detail = f"importing it ended the process with {done.returncode}: {done.stderr[-200:].strip()}"
        return {name: CheckResult(False, detail) for name in LOCAL_LIBRARIES}, []
    report = json.loads(done.stdout.splitlines()[-1])
    return {name: CheckResult(**one) for name, one in report["libraries"].items()}, report["gpus"]


def _cluster() -> Iterator[tuple[str, CheckResult]]:
    """Check the libraries of the engine `cluster`, by metadata only, as importing them takes half a minute."""
    wrong = library_problems()
    for name in REQUIRED_RELEASES:
        yield (
            name,
            CheckResult(False, wrong[name]) if name in wrong else CheckResult(True, str(installed_version(name))),
        )


def _engines(registry: Registry, libraries: Mapping[str, CheckResult]) -> Iterator[tuple[str, CheckResult]]:
    lacking = {"local": [name for name, one in libraries.items() if not one.ok], "cluster": list(library_problems())}
    command = {"local": f'pip install "{CORE_PACKAGE}[train]"', "cluster": INSTALL_COMMAND}
    for name in registry.names("engines"):
        if lacking.get(name):
            yield name, CheckResult(False, f"lacks {', '.join(lacking[name])}: {command[name]}")
        else:
            yield name, CheckResult(True, "installed")
    for name, package in first_party_packages("engines").items():
        if registry.package_to_install("engines", name):
            yield name, CheckResult(False, f'not installed: pip install "{package}"')


def _sandboxes() -> Iterator[tuple[str, CheckResult]]:
    """Run a program that tries to escape in every sandbox backend."""
    from mappa_sandbox.choose_sandbox import survey_backends

    for name, result in asyncio.run(survey_backends()).items():
        if isinstance(result, Sandbox):
            yield name, CheckResult(True, "; ".join((result.detail, *result.warnings)))
        else:
            yield name, CheckResult(False, result)


def _python_tool(registry: Registry) -> CheckResult:
    """Run one program by the tool `python`."""
    try:
        result = asyncio.run(_run_print(registry))
    except MappaError as error:
        return CheckResult(False, str(error))
    answer = (result.stdout or result.stderr).strip()
    return CheckResult(answer == "1", f"print(1) gave {answer!r} in {result.seconds:.2f} s, sandbox: {result.sandbox}")


async def _run_print(registry: Registry) -> ToolResult:
    from mappa_core.tools.workspace import FolderWorkspace

    tool: Tool = registry.build("tools", "python")
    try:
        with tempfile.TemporaryDirectory() as folder:
            return await tool.call({"code": "print(1)"}, FolderWorkspace(Path(folder)), ToolLimits())
    finally:
        await tool.close()


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
    return CheckResult(
        writable, f"{free:.1f} GiB free, {'writable' if writable else f'no permission to write in {existing}'}"
    )


def _plugins(registry: Registry) -> Iterator[tuple[str, CheckResult]]:
    for plugin in registry.plugins.values():
        yield plugin.name, CheckResult(True, f"{plugin.package} {plugin.version}")
    for broken in registry.broken.values():
        yield broken.name, CheckResult(False, f"{broken.package} {broken.version}: {broken.reason}")
