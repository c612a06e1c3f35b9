"""`mappa doctor`: what is installed here and usable. Keys are shown by name, never by value."""

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
from mappa_core.engine.cluster.installed import INSTALL, LIBRARIES, faults
from mappa_core.engine.process import release
from mappa_core.errors import MappaError
from mappa_core.plugins import CORE_PACKAGE, NOUNS, PACKAGE_OF, Registry
from mappa_core.protocols import Tool
from mappa_core.records import Sandbox, ToolLimits, ToolResult

KEYS = ("GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "WANDB_API_KEY")
"""Environment variables of providers; options of offers that end in `_env` add theirs."""

LOCAL_LIBRARIES = ("torch", "transformers", "safetensors")
"""What the engine `local` needs."""

IMPORTS = """
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
"""Run in a process of its own: a broken driver or library must not take the doctor down."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    ok: bool
    detail: str


Findings = Mapping[str, Mapping[str, Finding]]


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """Show what is installed and usable here; keys only by name."""
    findings = examine(load_registry())
    if as_json:
        plain = {area: {name: asdict(one) for name, one in found.items()} for area, found in findings.items()}
        click.echo(json.dumps(plain, ensure_ascii=False))
    else:
        show(findings)


def show(findings: Findings) -> None:
    """Print one line a finding."""
    for area, found in findings.items():
        click.secho(area, bold=True)
        for name, one in found.items():
            mark = click.style("yes" if one.ok else "no ", fg="green" if one.ok else "yellow")
            click.echo(f"  {mark}  {name:<22}{one.detail}")


def examine(registry: Registry) -> Findings:
    """Look at everything; findings by area and name."""
    libraries, gpus = _libraries()
    return {
        "machine": dict(_machine()),
        "libraries": libraries,
        "gpu": {f"cuda:{index}": Finding(True, name) for index, name in enumerate(gpus)}
        or {"cuda": Finding(False, "none that torch can use; engines run on the CPU")},
        "cluster": dict(_cluster()),
        "engines": dict(_engines(registry, libraries)),
        "sandboxes": dict(_sandboxes()),
        "tools": {"python": _python_tool(registry)},
        "keys": {name: _key(name) for name in _key_names(registry)},
        "runs": {RunSection().root: _disk(Path(RunSection().root))},
        "plugins": dict(_plugins(registry)),
    }


def _machine() -> Iterator[tuple[str, Finding]]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield CORE_PACKAGE, Finding(True, version(CORE_PACKAGE))
    yield "Python", Finding(True, platform.python_version())
    yield "platform", Finding(sys.platform == "linux", platform.platform())
    yield "cores", Finding(True, str(os.cpu_count()))
    yield "memory", Finding(True, f"{memory / 2**30:.1f} GiB")


def _libraries() -> tuple[dict[str, Finding], list[str]]:
    program = [sys.executable, "-c", IMPORTS % (LOCAL_LIBRARIES,)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        detail = f"importing it ended the process with {done.returncode}: {done.stderr[-200:].strip()}"
        return {name: Finding(False, detail) for name in LOCAL_LIBRARIES}, []
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Finding(**one) for name, one in found["libraries"].items()}, found["gpus"]


def _cluster() -> Iterator[tuple[str, Finding]]:
    """What the engine `cluster` needs, by metadata alone: importing it takes half a minute."""
    wrong = faults()
    for name in LIBRARIES:
        yield name, Finding(False, wrong[name]) if name in wrong else Finding(True, str(release(name)))


def _engines(registry: Registry, libraries: Mapping[str, Finding]) -> Iterator[tuple[str, Finding]]:
    lacking = {"local": [name for name, one in libraries.items() if not one.ok], "cluster": list(faults())}
    command = {"local": f'pip install "{CORE_PACKAGE}[train]"', "cluster": INSTALL}
    for name in registry.names("engines"):
        if lacking.get(name):
            yield name, Finding(False, f"lacks {', '.join(lacking[name])}: {command[name]}")
        else:
            yield name, Finding(True, "installed")
    for (kind, name), package in PACKAGE_OF.items():
        if kind == "engines" and registry.absent_package("engines", name):
            yield name, Finding(False, f'not installed: pip install "{package}"')


def _sandboxes() -> Iterator[tuple[str, Finding]]:
    """Run a program that tries to get out in every cage."""
    from mappa_core.tools.python.tiers import survey

    for name, found in asyncio.run(survey()).items():
        if isinstance(found, Sandbox):
            yield name, Finding(True, "; ".join((found.detail, *found.warnings)))
        else:
            yield name, Finding(False, found)


def _python_tool(registry: Registry) -> Finding:
    """Run one program."""
    try:
        result = asyncio.run(_print_one(registry))
    except MappaError as error:
        return Finding(False, str(error))
    answer = (result.stdout or result.stderr).strip()
    return Finding(answer == "1", f"print(1) gave {answer!r} in {result.seconds:.2f} s, sandbox: {result.sandbox}")


async def _print_one(registry: Registry) -> ToolResult:
    from mappa_core.tools.workspace import FolderWorkspace

    tool: Tool = registry.build("tools", "python")
    try:
        with tempfile.TemporaryDirectory() as folder:
            return await tool.call({"code": "print(1)"}, FolderWorkspace(Path(folder)), ToolLimits())
    finally:
        await tool.close()


def _key_names(registry: Registry) -> tuple[str, ...]:
    named = set(KEYS)
    for kind in NOUNS:
        for offer in (registry.offer(kind, name) for name in registry.names(kind)):
            defaults = {field.name: field.default for field in fields(offer.options)}
            named |= {value for key, value in defaults.items() if key.endswith("_env") and isinstance(value, str)}
    return tuple(sorted(named))


def _key(name: str) -> Finding:
    return Finding(bool(os.environ.get(name)), "set" if os.environ.get(name) else "not set")


def _disk(folder: Path) -> Finding:
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    writable = os.access(there, os.W_OK | os.X_OK)
    free = shutil.disk_usage(there).free / 2**30
    return Finding(writable, f"{free:.1f} GiB free, {'writable' if writable else f'no permission to write in {there}'}")


def _plugins(registry: Registry) -> Iterator[tuple[str, Finding]]:
    for plugin in registry.plugins.values():
        yield plugin.name, Finding(True, f"{plugin.package} {plugin.version}")
    for broken in registry.broken.values():
        yield broken.name, Finding(False, f"{broken.package} {broken.version}: {broken.reason}")
