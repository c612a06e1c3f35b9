"""Whether a server can run programs, found out by running some, and what they find there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from mappa_core import one_line
from mappa_sandboxfusion import quirks
from mappa_sandboxfusion.client import FusionClient, ServerFault
from mappa_sandboxfusion.shipped import COMPILE, REPORT, archive

OLDEST = (3, 10)
RUN_S = 20.0
"""Seconds that one of these programs may take: a server that is busy with others is no broken one."""
DEADLINE_S = 30.0
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|COOKIE|SESSION", re.IGNORECASE)
BARE = re.compile(
    r"HOME|HOSTNAME|LANG|LC_\w+|LOGNAME|MPLBACKEND|OLDPWD|OMP_NUM_THREADS|PATH|PWD|PYTHON\w+|QT_QPA_PLATFORM"
    r"|SANDBOX_CONFIG|SHELL|SHLVL|TERM|TMPDIR|TZ|USER|_|__CF_USER_TEXT_ENCODING"
)
"""What a server started with a bare environment has, that of its own image included."""
MOST_NAMED = 8


class _Report(msgspec.Struct, frozen=True):
    """What report.py writes."""

    python: tuple[int, int, int]
    root: str
    found: bool
    uid: int
    names: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What programs find on a server.

    `root` is the folder there that is this client's. `keeps_files`: whether what one program leaves in it is there for
    the next. `secrets` and `others` are names of environment variables beyond those of a bare environment.
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
        """What is not kept from programs there, and what will be slow, each in a sentence."""
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
            yield f"programs can read what look like secrets in its environment ({_named(self.secrets)}): {clean}"
        if self.others:
            yield f"programs can read further variables of its environment ({_named(self.others)}): {clean}"
        url = urlsplit(self.url)
        if url.scheme == "http" and not _is_loopback(url.hostname or ""):
            yield "programs and their files travel in the clear, and whoever reaches the address can run programs"


def folder_name() -> str:
    """A name that nobody guesses, for a folder on servers; remote/report.py knows how it begins."""
    return f"mappa-fusion-{secrets.token_hex(16)}"


async def inspect(client: FusionClient, name: str, *, keep: bool = True) -> Findings:
    """Run programs on a server; `name` is that of the folder there that becomes this client's. Unless `keep`, it is
    removed again.

    Raises:
        ServerFault: it does not answer, cannot run a program, or its Python is too old.
    """
    await client.ping()
    await _say(client)
    mark = f"mark-{secrets.token_hex(8)}"
    await _report(client, {"name": name, "mark": mark, "remove": False})
    last = await _report(client, {"name": name, "mark": mark, "remove": not keep})
    return Findings(
        url=client.url,
        python=last.python,
        root=last.root,
        keeps_files=last.found,
        as_root=last.uid == 0,
        secrets=tuple(one for one in last.names if SECRET.search(one)),
        others=tuple(one for one in last.names if not SECRET.search(one) and not BARE.fullmatch(one)),
    )


async def _say(client: FusionClient) -> None:
    """Have a word printed: this also runs where Python is older than the programs that follow."""
    word = secrets.token_hex(8)
    code = f"import sys; print('{word}', sys.version_info[0], sys.version_info[1])"
    run = await client.run_code(code, run_timeout_s=RUN_S, deadline_s=DEADLINE_S)
    if (fault := quirks.fault(client.url, code, run)) is not None:
        raise fault
    assert run.run_result is not None  # or there would be a fault
    said = quirks.output(client.url, run.run_result.stdout).split()
    if said[:1] != [word] or run.run_result.return_code != 0:
        error = one_line(run.run_result.stderr or run.run_result.status)
        raise ServerFault(client.url, f"a program that prints a word did not print it: {error}")
    version = tuple(int(part) for part in said[1:])
    if version < OLDEST:
        raise ServerFault(
            client.url,
            f"programs get Python {said[1]}.{said[2]} there, and need {OLDEST[0]}.{OLDEST[1]} or newer: "
            "install a newer one as the server's environment sandbox-runtime",
        )


async def compiled_archive(client: FusionClient) -> bytes:
    """What is sent with each call, compiled by the Python of the server. Raises ServerFault where that fails."""
    return await _made(client, COMPILE, {"archive.zip": archive()}, "compiled.zip")


async def _report(client: FusionClient, job: dict[str, str | bool]) -> _Report:
    found = await _made(client, REPORT, {"job.json": msgspec.json.encode(job)}, "report.json")
    try:
        return msgspec.json.decode(found, type=_Report)
    except msgspec.DecodeError as error:
        raise ServerFault(client.url, f"its report is damaged: {error}") from error


async def _made(client: FusionClient, code: str, files: dict[str, bytes], wanted: str) -> bytes:
    """The file `wanted` that the program `code` makes of `files`."""
    run = await client.run_code(code, files=files, fetch=[wanted], run_timeout_s=RUN_S, deadline_s=DEADLINE_S)
    if (fault := quirks.fault(client.url, code, run)) is not None:
        raise fault
    if run.status != "Success" and run.run_result is not None:
        error = one_line((run.run_result.stderr or run.run_result.status)[-400:])
        raise ServerFault(client.url, f"a program that was to make {wanted} failed: {error}")
    return quirks.fetched(client.url, [wanted], run)[wanted]


def _named(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    return f"{shown} and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else shown


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
