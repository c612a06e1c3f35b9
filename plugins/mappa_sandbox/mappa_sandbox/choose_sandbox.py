"""Choose the sandbox backend: the first in which a test program runs, and from which it cannot escape."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

from mappa_core import ConfigError, ToolError, ToolLimits
from mappa_core.sandbox import OwnedFolder, Sandbox, retry, sweep_folders
from mappa_sandbox.find_control_groups import describe_limits, find_control_groups
from mappa_sandbox.fork_server_process import ForkServerProcess
from mappa_sandbox.isolation import landlock, system_paths
from mappa_sandbox.isolation.bubblewrap import WORKSPACE
from mappa_sandbox.isolation.job import SandboxConfig
from mappa_sandbox.messages import program_job, program_result
from mappa_sandbox.options import PythonOptions

PREFERRED_BACKENDS = ("bubblewrap", "landlock")
"""Backends to try, best first."""
INSTALL_BUBBLEWRAP = "apt install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora)"
NOT_SANDBOXED = "programs are not caged: they can read your files and keys, change your files and use your network"
PACKAGE = "package:"
SCRATCH_PREFIX = "mappa-python-"
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

RETRIES = 1
"""How often a probe that was lost in a sandbox is retried: a fault that occurs once in thousands of programs must not
stop a run."""


@dataclass(frozen=True)
class OpenedSandbox:
    """A sandbox that works, with the fork server that runs programs in it."""

    fork_server: ForkServerProcess
    config: SandboxConfig
    sandbox: Sandbox


async def choose_sandbox(options: PythonOptions, workers: int) -> OpenedSandbox:
    """Open the first sandbox that works, of those that `options` allow, for as many programs at once as `workers`.

    Raises:
        ConfigError: none works; the message gives the reason for each backend and what to do.
    """
    backends = _backends_to_try(options)
    hidden = resolve_hidden(options.hidden_paths)
    warm_up = read_warm_up(options.warm_up)
    reasons = {}
    for backend in backends:
        try:
            return await try_backend(backend, options.preload, hidden, warm_up, workers)
        except ToolError as error:
            reasons[backend] = str(error)
    listed = "".join(f"\n  {backend}: {reason}" for backend, reason in reasons.items())
    if not options.allow_unsafe:
        raise ConfigError(
            f"no sandbox for the programs of agents works here:{listed}\n"
            f"Install bubblewrap: {INSTALL_BUBBLEWRAP}. Or set allow_unsafe=true in the options of the tool python, "
            f"and accept that {NOT_SANDBOXED}."
        )
    if hidden:
        raise ConfigError(
            "hidden_paths cannot be kept without a sandbox: leave them out, or install bubblewrap: "
            f"{INSTALL_BUBBLEWRAP}{listed}"
        )
    opened = await try_backend("none", options.preload, (), warm_up, workers)
    details = [*(f"{backend}: {reason}" for backend, reason in reasons.items()), opened.sandbox.detail]
    return replace(opened, sandbox=replace(opened.sandbox, detail="; ".join(details)))


def _backends_to_try(options: PythonOptions) -> Sequence[str]:
    """Backends to try before programs run without a sandbox."""
    if options.sandbox == "none" and not options.allow_unsafe:
        raise ConfigError(f"sandbox=none needs allow_unsafe=true, as {NOT_SANDBOXED}")
    return {"auto": PREFERRED_BACKENDS, "none": ()}.get(options.sandbox, (options.sandbox,))


async def survey_backends() -> Mapping[str, Sandbox | str]:
    """Try every backend, best first: its Sandbox, or the reason why it does not work."""
    results: dict[str, Sandbox | str] = {}
    for backend in PREFERRED_BACKENDS:
        try:
            opened = await try_backend(backend, (), ())
        except (ConfigError, ToolError) as error:
            results[backend] = str(error)
        else:
            await asyncio.to_thread(opened.fork_server.close)
            results[backend] = opened.sandbox
    return results


async def try_backend(
    backend: str, preload: Sequence[str], hidden: Sequence[str], warm_up: str = "", workers: int = 1
) -> OpenedSandbox:
    """Start a fork server for `backend` and run a program in its sandbox that tries to escape.

    Raises:
        ToolError: the backend does not work here; says why.
        ConfigError: this system is not Linux, a module cannot be preloaded, or the program `warm_up` fails.
    """
    config = _make_config(backend, tuple(preload), tuple(hidden), warm_up, workers)
    fork_server = ForkServerProcess(config)
    try:
        greeting = await fork_server.wait_ready()
        probe = partial(_find_escapes, fork_server, config)
        escapes, _ = await retry(probe, retries=RETRIES, label=backend)
    except BaseException:
        await asyncio.to_thread(fork_server.close)
        raise
    detail, warnings = _describe_backend(backend)
    detail = "; ".join(filter(None, (detail, describe_limits(find_control_groups(), holds_files=greeting.holds_files))))
    if backend != "none" and escapes:
        await asyncio.to_thread(fork_server.close)
        raise ToolError(f"not used, as a program in it could {', '.join(escapes)}")
    if greeting.threads:
        warnings += (
            f"preloading started {greeting.threads} threads, which programs lack: what needs them may wait for ever",
        )
    return OpenedSandbox(fork_server, config, Sandbox(name=backend, detail=detail, warnings=warnings))


async def start_fork_server(config: SandboxConfig) -> ForkServerProcess:
    """Start another fork server for a config that has worked."""
    await asyncio.to_thread(os.makedirs, config.scratch, _scratch_mode(), exist_ok=True)
    fork_server = ForkServerProcess(config)
    await fork_server.wait_ready()
    return fork_server


def folder_inside(backend: str, folder: str) -> str:
    """Path under which programs see their workspace."""
    return WORKSPACE if backend == "bubblewrap" else folder


def _make_config(
    backend: str, preload: tuple[str, ...], hidden: tuple[str, ...], warm_up: str, workers: int
) -> SandboxConfig:
    if sys.platform != "linux":
        raise ConfigError(
            f"the tool python runs programs on Linux only, and this is {sys.platform}. Run Mappa on Linux or in WSL2, "
            "or run programs on a server: pip install mappa-sandboxfusion"
        )
    if backend == "landlock" and not landlock.abi_version():
        raise ToolError("this kernel has no Landlock (Linux 5.13 or newer), or was started without it (lsm=)")
    program = shutil.which("bwrap") if backend == "bubblewrap" else None
    if backend == "bubblewrap" and program is None:
        raise ToolError("bwrap was not found")
    sweep_folders(SCRATCH_PREFIX)
    scratch = tempfile.mkdtemp(prefix=SCRATCH_PREFIX)
    Path(scratch).chmod(_scratch_mode())
    groups = find_control_groups()
    return SandboxConfig(
        backend=backend,
        scratch=scratch,
        workers=workers,
        preload=preload,
        warm_up=warm_up,
        readable=readable_paths(),
        hidden=hidden,
        bubblewrap=program,
        held=groups.held,
        launcher=groups.launcher,
    )


def _scratch_mode() -> int:
    """Mode of a scratch folder: as root, other users must reach their own folders in it."""
    return 0o711 if os.geteuid() == 0 else 0o700


async def _find_escapes(fork_server: ForkServerProcess, config: SandboxConfig) -> list[str]:
    """Run the probe in the sandbox; returns what it could do but should not."""
    with closing(OwnedFolder("mappa-probe-")) as parent:
        folder, secret = _make_probe_files(parent.path)
        arguments = (secret, str(os.getpid()), *config.hidden)
        reply = await fork_server.run(program_job(PROBE, ToolLimits(), folder=folder, arguments=arguments))
        written = "written" in os.listdir(folder)  # noqa: PTH208
    result = program_result(reply, ToolLimits(), folder=folder, files=(), irregular_files=(), sandbox=config.backend)
    if result.status != "ok" or not written:
        raise ToolError(f"a first program failed in it: {result.stderr.strip() or result.status}")
    escapes: list[str] = json.loads(result.stdout)
    # Below ABI 6 Landlock allows signals; that is a warning, no failure.
    return [what for what in escapes if not (_gaps(config.backend) and what.startswith("signal"))]


def _make_probe_files(parent: Path) -> tuple[str, str]:
    """Create a workspace below `parent`, and beside it a file that everyone may read."""
    parent.chmod(_scratch_mode())
    folder, secret = (parent / "folder").resolve(), parent / "secret"
    folder.mkdir()
    secret.write_text(SECRET)
    return str(folder), str(secret)


def _describe_backend(backend: str) -> tuple[str, tuple[str, ...]]:
    if backend == "landlock":
        return f"Landlock ABI {landlock.abi_version()} and seccomp", _gaps(backend)
    if backend == "none":
        return "", (NOT_SANDBOXED,)
    return "namespaces and seccomp", ()


def _gaps(backend: str) -> tuple[str, ...]:
    """Describe what a sandbox leaves open to programs of this process's user; as root they run as another user."""
    return landlock.gaps(landlock.abi_version()) if backend == "landlock" and os.geteuid() != 0 else ()


def readable_paths() -> tuple[str, ...]:
    """Paths of the system and of this interpreter that programs may read, without those inside others."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parents[1])}
    # The prefix of a distribution's own Python is /usr: what it needs there is among the system's paths.
    interpreter = {
        path for path in prefixes if not any(part.startswith(f"{path}/") for part in system_paths.SYSTEM_PATHS)
    }
    candidates = {*system_paths.SYSTEM_PATHS, *interpreter, *(os.path.realpath(path) for path in interpreter)}
    paths: list[str] = []
    for path in sorted(path for path in candidates if os.path.lexists(path)):
        if not any(path.startswith(f"{above}/") for above in paths):
            paths.append(path)
    return tuple(paths)


def read_warm_up(spec: str | None) -> str:
    """Read the program of the option `warm_up`: a file, or `package:NAME/PATH`.

    Raises:
        ConfigError: the file cannot be read.
    """
    if spec is None:
        return ""
    package, _, inside = spec.removeprefix(PACKAGE).partition("/")
    try:
        if not spec.startswith(PACKAGE):
            return Path(spec).read_text(encoding="utf-8")
        return (files(package) / inside).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ModuleNotFoundError) as error:
        raise ConfigError(f"warm_up: cannot read {spec!r}: {error}") from error


def resolve_hidden(hidden_paths: Sequence[str]) -> tuple[str, ...]:
    """Resolve the paths of the option `hidden_paths`: absolute ones, and those inside a folder of installed packages.

    Raises:
        ConfigError: a path does not exist, and does not end in `?`.
    """
    resolved = []
    for entry in hidden_paths:
        path = entry.removesuffix("?")
        packages = [Path("/")] if path.startswith("/") else [Path(folder) for folder in sys.path if folder]
        matches = [folder / path for folder in packages if (folder / path).exists()]
        if not matches and path == entry:
            raise ConfigError(
                f"hidden_paths: {path!r} is not there. Give an absolute path, or one inside the folder of installed "
                "packages, like sklearn/datasets/data; end it in ? where it need not be there"
            )
        resolved += [str(match.resolve()) for match in matches]
    return tuple(dict.fromkeys(resolved))
