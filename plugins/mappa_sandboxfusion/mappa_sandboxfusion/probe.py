"""Probes a server: runs programs on it and reports their environment."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from mappa_core.transport import one_line
from mappa_sandboxfusion import quirks
from mappa_sandboxfusion.client import FusionClient, ServerFault
from mappa_sandboxfusion.remote_archive import COMPILE_PROGRAM, REPORT_PROGRAM, build_archive

MIN_PYTHON = (3, 10)
RUN_TIMEOUT_S = 20.0
"""Time limit in seconds of one of these programs; generous, as a busy server is not a broken one."""
DEADLINE_S = 30.0
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|COOKIE|SESSION", re.IGNORECASE)
BARE_ENVIRONMENT_NAME = re.compile(
    r"HOME|HOSTNAME|LANG|LC_\w+|LOGNAME|MPLBACKEND|OLDPWD|OMP_NUM_THREADS|PATH|PWD|PYTHON\w+|QT_QPA_PLATFORM"
    r"|SANDBOX_CONFIG|SHELL|SHLVL|TERM|TMPDIR|TZ|USER|_|__CF_USER_TEXT_ENCODING"
)
"""Names of the environment variables of a server started with a bare environment, those of its image included."""
MAX_LISTED_NAMES = 8


class _Report(msgspec.Struct, frozen=True):
    """The report that remote/report.py writes."""

    python: tuple[int, int, int]
    root: str
    found: bool
    uid: int
    names: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The environment of programs on a server.

    `root` is this client's folder there. `keeps_files`: whether files that one program leaves in it exist for the next
    program. `secrets` and `others` are names of environment variables beyond those of a bare environment.
    """

    url: str
    python: tuple[int, int, int]
    root: str
    keeps_files: bool
    as_root: bool
    secrets: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on missing isolation and on slow transfers."""
        return tuple(f"{self.url}: {text}" for text in self._warnings())

    def _warnings(self) -> Iterator[str]:
        who = "root" if self.as_root else "the server's user"
        if self.keeps_files:
            yield f"programs run as {who} and are not kept from each other, nor from the machine and its network"
        else:
            yield (
                "it keeps no files from one program to the next (isolation lite, or several servers behind one "
                "address): all files of a trajectory are sent with each program"
            )
        clean = "start it in a clean environment (env -i, docs/sandboxfusion.md)"
        if self.secrets:
            yield f"programs can read what look like secrets in its environment ({_list_names(self.secrets)}): {clean}"
        if self.others:
            yield f"programs can read further variables of its environment ({_list_names(self.others)}): {clean}"
        url = urlsplit(self.url)
        if url.scheme == "http" and not _is_loopback(url.hostname or ""):
            yield "programs and their files travel in the clear, and whoever reaches the address can run programs"


def new_folder_name() -> str:
    """Return an unguessable name for a folder on servers, with the prefix that remote/report.py expects."""
    return f"mappa-fusion-{secrets.token_hex(16)}"


async def inspect_server(client: FusionClient, name: str, *, keep: bool = True) -> Findings:
    """Probe a server. `name` is the name of this client's folder there, which is removed again unless `keep`.

    Raises:
        ServerFault: it does not answer, cannot run a program, or its Python is too old.
    """
    await client.ping()
    await _check_prints(client)
    mark = f"mark-{secrets.token_hex(8)}"
    await _fetch_report(client, {"name": name, "mark": mark, "remove": False})
    last = await _fetch_report(client, {"name": name, "mark": mark, "remove": not keep})
    return Findings(
        url=client.url,
        python=last.python,
        root=last.root,
        keeps_files=last.found,
        as_root=last.uid == 0,
        secrets=tuple(name for name in last.names if SECRET_NAME.search(name)),
        others=tuple(
            name for name in last.names if not SECRET_NAME.search(name) and not BARE_ENVIRONMENT_NAME.fullmatch(name)
        ),
    )


async def _check_prints(client: FusionClient) -> None:
    """Run a program that prints a word; it also runs on a Python too old for the programs that follow."""
    word = secrets.token_hex(8)
    code = f"import sys; print('{word}', sys.version_info[0], sys.version_info[1])"
    run = await client.run_code(code, run_timeout_s=RUN_TIMEOUT_S, deadline_s=DEADLINE_S)
    if (fault := quirks.find_fault(client.url, code, run)) is not None:
        raise fault
    assert run.run_result is not None  # or there would be a fault
    words = quirks.check_output(client.url, run.run_result.stdout).split()
    if words[:1] != [word] or run.run_result.return_code != 0:
        error = one_line(run.run_result.stderr or run.run_result.status)
        raise ServerFault(client.url, f"a program that prints a word did not print it: {error}")
    version = tuple(int(part) for part in words[1:])
    if version < MIN_PYTHON:
        raise ServerFault(
            client.url,
            f"programs get Python {words[1]}.{words[2]} there, and need {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer: "
            "install a newer one as the server's environment sandbox-runtime",
        )


async def compile_archive(client: FusionClient) -> bytes:
    """Compile the archive that is sent with each call by the server's Python. Raises ServerFault where that fails."""
    return await _run_and_fetch(client, COMPILE_PROGRAM, {"archive.zip": build_archive()}, "compiled.zip")


async def _fetch_report(client: FusionClient, job: dict[str, str | bool]) -> _Report:
    found = await _run_and_fetch(client, REPORT_PROGRAM, {"job.json": msgspec.json.encode(job)}, "report.json")
    try:
        return msgspec.json.decode(found, type=_Report)
    except msgspec.DecodeError as error:
        raise ServerFault(client.url, f"its report is damaged: {error}") from error


async def _run_and_fetch(client: FusionClient, code: str, files: dict[str, bytes], output_file: str) -> bytes:
    """Run the program `code` with `files` and return its output file `wanted`."""
    run = await client.run_code(
        code, files=files, fetch=[output_file], run_timeout_s=RUN_TIMEOUT_S, deadline_s=DEADLINE_S
    )
    if (fault := quirks.find_fault(client.url, code, run)) is not None:
        raise fault
    if run.status != "Success" and run.run_result is not None:
        error = one_line((run.run_result.stderr or run.run_result.status)[-400:])
        raise ServerFault(client.url, f"a program that was to make {output_file} failed: {error}")
    return quirks.check_fetched(client.url, [output_file], run)[output_file]


def _list_names(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:MAX_LISTED_NAMES])
    return f"{shown} and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else shown


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
