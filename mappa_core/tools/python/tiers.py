"""Which cage programs get: the first in which a program runs, and from which it does not get out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mappa_core.errors import ConfigError, ToolError
from mappa_core.records import Sandbox, ToolLimits
from mappa_core.tools.cage import landlock, places
from mappa_core.tools.cage.bubblewrap import WORKSPACE
from mappa_core.tools.cage.order import Setup
from mappa_core.tools.patience import patiently
from mappa_core.tools.python.driver import WardenProcess
from mappa_core.tools.python.exchange import program_order, program_result
from mappa_core.tools.python.options import PythonOptions

CAGES = ("bubblewrap", "landlock") if sys.platform == "linux" else ("seatbelt",)
"""What is tried here, best first."""
INSTALL = "apt install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora)"
UNCAGED = "programs are not caged: they can read your files and keys, change your files and use your network"
SECRET = "not for programs"

PROBE = """
import json, os, socket, sys
secret, driver, *hidden = sys.argv[1:]
escapes = []

def attempt(what, action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return
    escapes.append(what)

attempt("read a file outside its folder", open, secret)
attempt("write a file outside its folder", open, secret + ".new", "w")
attempt("open a socket", socket.socket)
attempt("signal the process that trains", os.kill, int(driver), 0)

def read_within(path):
    # Names of what is hidden may show, contents may not.
    for folder, _, files in os.walk(path):
        for name in files:
            open(os.path.join(folder, name)).close()
            return
    open(path).close()

for path in hidden:
    attempt("read the hidden " + path, read_within, path)
open("written", "w").close()
print(json.dumps(escapes))
"""

RETRIES, RETRY_AFTER_S = 1, 0.5
"""How often a program that a cage lost is run again, and after how many seconds: a fault that comes once in thousands
of programs must not stop a run."""


@dataclass(frozen=True)
class Chosen:
    """A cage that works, with a warden that runs programs in it."""

    warden: WardenProcess
    setup: Setup
    sandbox: Sandbox


async def choose(options: PythonOptions) -> Chosen:
    """The first cage that works of those that `options` allow.

    Raises:
        ConfigError: there is none; the message says why each is not there and what to do.
    """
    tiers = _tiers(options)
    hidden = resolved(options.hide)
    reasons = {}
    for tier in tiers:
        try:
            return await attempt(tier, options.preload, hidden)
        except ToolError as error:
            reasons[tier] = str(error)
    listed = "".join(f"\n  {tier}: {reason}" for tier, reason in reasons.items())
    if not options.allow_unsafe:
        raise ConfigError(
            f"no sandbox for the programs of agents works here:{listed}\n"
            f"Install bubblewrap: {INSTALL}. Or set allow_unsafe=true in the options of the tool python, and accept "
            f"that {UNCAGED}."
        )
    if hidden:
        raise ConfigError(f"hide cannot be kept without a cage.{listed}")
    chosen = await attempt("none", options.preload, ())
    why = "; ".join(f"{tier}: {reason}" for tier, reason in reasons.items())
    return replace(chosen, sandbox=replace(chosen.sandbox, detail=why))


def _tiers(options: PythonOptions) -> Sequence[str]:
    """What is to be tried before programs run without a cage."""
    known = ("bubblewrap", "landlock", "seatbelt")
    if options.cage not in ("auto", *known, "none"):
        raise ConfigError(f"cage={options.cage!r}: it is auto, {', '.join(known)} or none")
    if options.cage == "none" and not options.allow_unsafe:
        raise ConfigError(f"cage=none needs allow_unsafe=true, as {UNCAGED}")
    return {"auto": CAGES, "none": ()}.get(options.cage, (options.cage,))


async def survey() -> Mapping[str, Sandbox | str]:
    """Every cage that could be here, and the reason where one does not work. Best first."""
    found: dict[str, Sandbox | str] = {}
    for tier in CAGES:
        try:
            chosen = await attempt(tier, (), ())
        except ToolError as error:
            found[tier] = str(error)
        else:
            await asyncio.to_thread(chosen.warden.close)
            found[tier] = chosen.sandbox
    return found


async def attempt(tier: str, preload: Sequence[str], hidden: Sequence[str]) -> Chosen:
    """Start a warden for `tier` and run a program in its cage that tries to get out.

    Raises:
        ToolError: the tier does not work here; says why.
        ConfigError: a module cannot be preloaded.
    """
    setup = _setup(tier, tuple(preload), tuple(hidden))
    warden = WardenProcess(setup)
    try:
        threads = await warden.ready()
        trying = partial(_escapes, warden, setup)
        escapes, _ = await patiently(trying, retries=RETRIES, wait_s=RETRY_AFTER_S, whose=tier)
    except BaseException:
        await asyncio.to_thread(warden.close)
        raise
    detail, warnings = _described(tier)
    if tier != "none" and escapes:
        await asyncio.to_thread(warden.close)
        raise ToolError(f"a program in it could {', '.join(escapes)}")
    if threads:
        warnings += (f"preloading started {threads} threads, which programs lack: what needs them may wait for ever",)
    return Chosen(warden, setup, Sandbox(name=tier, detail=detail, warnings=warnings))


async def start(setup: Setup) -> WardenProcess:
    """Another warden for a setup that has worked."""
    await asyncio.to_thread(os.makedirs, setup.scratch, _passable(), exist_ok=True)
    warden = WardenProcess(setup)
    await warden.ready()
    return warden


def inside(tier: str, folder: str) -> str:
    """The path at which programs see their workspace."""
    return WORKSPACE if tier == "bubblewrap" else folder


def _setup(tier: str, preload: tuple[str, ...], hidden: tuple[str, ...]) -> Setup:
    if tier == "landlock" and not landlock.abi():
        raise ToolError("this kernel has no Landlock, or it is switched off")
    if tier not in (*CAGES, "none"):
        raise ToolError(f"not on {sys.platform}")
    program = shutil.which("bwrap") if tier == "bubblewrap" else None
    if tier == "bubblewrap" and program is None:
        raise ToolError("bwrap was not found")
    scratch = tempfile.mkdtemp(prefix="mappa-python-")
    Path(scratch).chmod(_passable())
    setup = Setup(tier=tier, scratch=scratch, preload=preload, readable=readable(), hidden=hidden, bubblewrap=program)
    if program is None:
        return setup
    known = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
    return replace(setup, sized="--size" in known)


def _passable() -> int:
    """Mode of a folder in which users of a program's own have theirs, which only root can make."""
    return 0o711 if os.geteuid() == 0 else 0o700


async def _escapes(warden: WardenProcess, setup: Setup) -> list[str]:
    """What a program managed in the cage that it should not."""
    with tempfile.TemporaryDirectory(prefix="mappa-probe-") as parent:
        folder, secret = _bait(parent)
        arguments = (secret, str(os.getpid()), *setup.hidden)
        reply = await warden.run(program_order(PROBE, ToolLimits(), folder=folder, arguments=arguments))
        kept = "written" in os.listdir(folder)  # noqa: PTH208
    result = program_result(reply, ToolLimits(), folder=folder, files=(), left_behind=(), sandbox=setup.tier)
    if result.status != "ok" or not kept:
        raise ToolError(f"a first program failed in it: {result.stderr.strip() or result.status}")
    escapes: list[str] = json.loads(result.stdout)
    # Below ABI 6 Landlock leaves signals open; that is a warning and no reason.
    return [what for what in escapes if not (_gaps(setup.tier) and what.startswith("signal"))]


def _bait(parent: str) -> tuple[str, str]:
    """A workspace below `parent`, and a file beside it that everyone may read."""
    Path(parent).chmod(_passable())
    folder, secret = Path(parent, "folder").resolve(), Path(parent, "secret")
    folder.mkdir()
    secret.write_text(SECRET)
    return str(folder), str(secret)


def _described(tier: str) -> tuple[str, tuple[str, ...]]:
    if tier == "landlock":
        return f"Landlock ABI {landlock.abi()} and seccomp", _gaps(tier)
    if tier == "none":
        return "", (UNCAGED,)
    detail = {"bubblewrap": "namespaces and seccomp", "seatbelt": "untried on this system"}
    return detail[tier], ()


def _gaps(tier: str) -> tuple[str, ...]:
    """What a cage leaves open to programs that run as this process's user: as root they run as another."""
    return landlock.gaps(landlock.abi()) if tier == "landlock" and os.geteuid() != 0 else ()


def readable() -> tuple[str, ...]:
    """The places of the system and of this interpreter that programs may read, those above others first."""
    interpreter = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parents[1])}
    wanted = {*places.SYSTEM, *interpreter, *(os.path.realpath(path) for path in interpreter)}
    found: list[str] = []
    for path in sorted(path for path in wanted if os.path.lexists(path)):
        if not any(path.startswith(f"{above}/") for above in found):
            found.append(path)
    return tuple(found)


def resolved(hide: Sequence[str]) -> tuple[str, ...]:
    """The paths that `hide` names: absolute ones, and those below a folder of installed packages.

    Raises:
        ConfigError: one is nowhere, and does not end in `?`.
    """
    found = []
    for wanted in hide:
        path = wanted.removesuffix("?")
        packages = [Path("/")] if path.startswith("/") else [Path(folder) for folder in sys.path if folder]
        there = [folder / path for folder in packages if (folder / path).exists()]
        if not there and path == wanted:
            raise ConfigError(
                f"hide: {path!r} is not there. Give an absolute path, or one inside the folder of installed packages, "
                "like sklearn/datasets/data; end it in ? where it need not be there"
            )
        found += [str(one.resolve()) for one in there]
    return tuple(dict.fromkeys(found))
