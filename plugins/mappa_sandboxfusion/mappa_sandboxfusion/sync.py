"""One server's side of trajectories: copies of their folders, brought up to date before a program and read after it.

What counts is the folder on our side. Before each program its copy is compared with it, on the server, by hash; where
the server lost something, it is sent again, and the program starts then. After a call that failed nobody knows what is
in a copy: the next call begins a new one, in a folder of another name.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from mappa_core import PROGRAM_ENVIRONMENT, ToolError, ToolLimits, one_line, program_order
from mappa_sandboxfusion import quirks, shipped
from mappa_sandboxfusion.client import SMALL_ANSWER, CodeRun, FusionClient, ServerFault
from mappa_sandboxfusion.copies import Copies, Copy
from mappa_sandboxfusion.findings import Findings
from mappa_sandboxfusion.local import LONGEST_NAME, LocalFile, is_plain
from mappa_sandboxfusion.options import Options
from mappa_sandboxfusion.parts import Answer, Part, batches, load, packed, parts_of

CLOSE_S = 10.0
MEMORY_SPARE_MB = 512
"""What the server's own limit, which holds for each process, leaves to the interpreter beside the program's memory."""
ANSWER, CHANGED, STARTED = "answer.json", "changed.bin", "started"


class _Lost(Exception):
    """The server does not have what it should. `inputs` are the hashes of those that it does not have."""

    def __init__(self, what: str, inputs: Sequence[str]) -> None:
        super().__init__(what)
        self.inputs = tuple(inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, and the folder on our side that it is to run in a copy of: its regular files, and the inputs of the
    task that stand there as links, each by name."""

    code: str
    arguments: tuple[str, ...]
    limits: ToolLimits
    folder: Path
    files: Mapping[str, LocalFile]
    inputs: Mapping[str, tuple[Path, LocalFile]]

    @property
    def most(self) -> tuple[int, int, int]:
        """How many files may be left, their bytes, and those of one: the limits, or what was there already."""
        sizes = [file.size for file in self.files.values()]
        limits = self.limits
        return (
            max(limits.workspace_files, len(sizes)),
            max(limits.workspace_bytes, sum(sizes)),
            max([limits.file_bytes, *sizes]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a program that ran in `folder`: the runner's reply, all `files` that are there now (name to
    sha256), the bytes of those that changed (sha256 to a file), inputs that still stand as links, and what is
    neither."""

    reply: Mapping[str, Any]
    folder: str
    files: Mapping[str, str]
    contents: Mapping[str, Path]
    linked: frozenset[str]
    left_behind: tuple[str, ...]


class Remote:
    """Runs programs on one server, several at once, each in a copy of its own."""

    def __init__(self, client: FusionClient, findings: Findings, archive: bytes, options: Options) -> None:
        """`archive` is `shipped.archive`, compiled by the server's Python."""
        self.findings = findings
        self._client = client
        self._archive = archive
        self._options = options
        self._chunk = options.chunk_mb << 20
        self._keeps = findings.keeps_files
        self._copies = Copies()
        self._inputs: dict[str, list[int]] = {}
        self._sending: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def has(self, folder: Path) -> bool:
        """Whether a copy of `folder` is there."""
        return folder in self._copies

    async def run(self, program: Program, aside: Path) -> Outcome:
        """Run `program`, and fetch what it changed into files of the empty folder `aside`.

        Raises:
            ServerFault: it did not run, or nobody knows what became of it.
            ToolError: a file on our side cannot be read.
        """
        for _ in range(2):
            copy = self._copies.take(program.folder)
            try:
                outcome = await self._in_copy(copy, program, aside)
            except _Lost as error:
                what = str(error)
                self._copies.drop(program.folder)
                for sha256 in error.inputs:
                    self._inputs.pop(sha256, None)
            except BaseException:
                self._copies.drop(program.folder)
                raise
            else:
                self._copies.give_back(program.folder)
                if not self._keeps or "killed" in outcome.reply:  # what was killed may have left something half done
                    self._copies.drop(program.folder)
                return outcome
        self._keeps = False  # perhaps several servers share the address: what is sent in one call arrives at one
        raise ServerFault(self._client.url, f"what it was sent is not there when the program is to start: {what}")

    async def close(self) -> None:
        """Remove all that is on the server; it is not waited for long. Raises ServerFault where it does not answer."""
        job = self._job(end=True)
        deadline_s = self._options.connect_timeout_s + CLOSE_S
        with suppress(_Lost):
            self._answer(await self._call(job, b"", fetch=[ANSWER], run_s=CLOSE_S, deadline_s=deadline_s))

    async def _in_copy(self, copy: Copy, program: Program, aside: Path) -> Outcome:
        parts = [
            part
            for name, file in program.files.items()
            if copy.files.get(name) != file.sha256
            for part in parts_of("file", name, program.folder / name, file, self._chunk)
        ]
        if not self._keeps:
            parts += [part for path, file in program.inputs.values() for part in self._input_parts(path, file)]
            return await self._last_call(copy, program, parts, aside)
        for path, file in program.inputs.values():
            await self._send_input(path, file)
        *early, last = batches(parts, self._chunk)
        for batch in early:
            await self._send(copy, batch)
        return await self._last_call(copy, program, last, aside)

    def _input_parts(self, path: Path, file: LocalFile) -> list[Part]:
        return list(parts_of("input", file.sha256, path, file, self._chunk))

    async def _send_input(self, path: Path, file: LocalFile) -> None:
        async with self._sending[file.sha256]:  # several trajectories may want the same one
            if file.sha256 not in self._inputs:
                for batch in batches(self._input_parts(path, file), self._chunk):
                    await self._send(None, batch)

    async def _send(self, copy: Copy | None, batch: Sequence[Part]) -> None:
        job = self._job(copy, parts=[part.row for part in batch])
        data = await asyncio.to_thread(load, batch)
        run_s = self._options.transfer_s
        self._take(copy, self._answer(await self._call(job, data, fetch=[ANSWER], run_s=run_s, deadline_s=2 * run_s)))

    async def _last_call(self, copy: Copy, program: Program, batch: Sequence[Part], aside: Path) -> Outcome:
        """Send the last files and run the program."""
        limits, options = program.limits, self._options
        work = f"{self.findings.root}/{copy.folder}/work"
        inline = self._chunk if self._keeps else program.most[1]
        job = self._job(
            copy,
            parts=[part.row for part in batch],
            delete=[name for name in copy.files if name not in program.files],
            before={name: file.sha256 for name, file in program.files.items()},
            inputs={name: file.sha256 for name, (_, file) in program.inputs.items()},
            stamps={file.sha256: self._inputs.get(file.sha256) for _, file in program.inputs.values()},
            order=self._order(program, work),
            grace_s=options.margin_s,
            inline_bytes=inline,
            most=program.most,
        )
        run_s = limits.wall_s + 2 * options.margin_s
        run = await self._call(
            job,
            await asyncio.to_thread(load, batch),
            fetch=[ANSWER, CHANGED, STARTED],
            run_s=run_s,
            deadline_s=run_s + options.transfer_s,
            answer_bytes=_answer_bytes(program, inline),
            memory_limit_mb=_megabytes(limits.memory_bytes) + MEMORY_SPARE_MB if options.memory_limit else None,
        )
        if _was_killed(run):
            return _nothing_known(run, work, program)
        answer = self._answer(run)
        self._take(copy, answer)
        if answer.reply is None or "fault" in answer.reply:
            raise ServerFault(self._client.url, f"the runner failed: {answer.reply}")
        _check(self._client.url, answer, program)
        changed = quirks.fetched(self._client.url, [CHANGED], run)[CHANGED]
        contents = await self._contents(work, answer, changed, program, aside)
        copy.files = {name: sha256 for name, _, sha256, _ in answer.files}
        return Outcome(
            reply=answer.reply,
            folder=work,
            files=copy.files,
            contents=contents,
            linked=frozenset(answer.linked),
            left_behind=tuple(answer.left),
        )

    def _order(self, program: Program, work: str) -> dict[str, Any]:
        inputs = [f"{self.findings.root}/inputs/{file.sha256}" for _, file in program.inputs.values()]
        return asdict(
            program_order(program.code, program.limits, folder=work, arguments=program.arguments, inputs=inputs)
        )

    # --- calls ---

    def _job(self, copy: Copy | None = None, **fields: Any) -> dict[str, Any]:
        """What remote/run.py is to do; by default nothing."""
        return {
            "root": self.findings.root,
            "folder": None if copy is None else copy.folder,
            "fresh": copy is not None and not copy.made,
            "parts": [],
            "delete": [],
            "before": {},
            "inputs": {},
            "stamps": {},
            "order": None,
            "environment": PROGRAM_ENVIRONMENT,
            "end": False,
            **fields,
        }

    async def _call(
        self, job: Mapping[str, Any], data: bytes, *, fetch: Sequence[str], run_s: float, deadline_s: float, **more: Any
    ) -> CodeRun:
        with self._copies.removal() as useless:
            text = json.dumps({**job, "remove": useless}).encode()  # in ASCII: a program may be no UTF-8
            files = {"job.json": text, "upload.bin": data, "archive.zip": self._archive}
            run = await self._client.run_code(
                shipped.RUN, files=files, fetch=fetch, run_timeout_s=run_s, deadline_s=deadline_s, **more
            )
            if (fault := quirks.fault(self._client.url, shipped.RUN, run)) is not None:
                raise fault
        return run

    def _answer(self, run: CodeRun) -> Answer:
        """What remote/run.py says. Raises _Lost where the server lost something, ServerFault where it says nothing."""
        url, result = self._client.url, run.run_result
        assert result is not None  # or there would be a fault
        if result.status != "Finished" or result.return_code != 0:
            last = (result.stderr or "").strip().rpartition("\n")[2]
            raise ServerFault(url, f"the program around the agent's ended with {_ending(run)}: {one_line(last)}")
        try:
            answer = msgspec.json.decode(quirks.fetched(url, [ANSWER], run)[ANSWER], type=Answer)
        except msgspec.DecodeError as error:
            raise ServerFault(url, f"its {ANSWER} is damaged: {error}") from error
        if answer.lost is not None:
            raise _Lost(answer.lost, answer.gone)
        return answer

    def _take(self, copy: Copy | None, answer: Answer) -> None:
        self._inputs |= answer.stamps
        if copy is not None:
            copy.made = True

    # --- what comes back ---

    async def _contents(
        self, work: str, answer: Answer, changed: bytes, program: Program, aside: Path
    ) -> dict[str, Path]:
        """The bytes of all files that changed, in files of `aside` by their hash."""
        found: dict[str, Path] = {}
        later: list[tuple[str, int, str]] = []
        for name, size, sha256, at in answer.files:
            before = program.files.get(name)
            if before is not None and before.sha256 == sha256:
                continue
            if at is None:
                later.append((name, size, sha256))
            else:
                found[sha256] = await asyncio.to_thread(self._keep, aside, name, sha256, changed[at : at + size])
        for group in packed(later, lambda one: one[1], self._chunk):
            if group:
                found |= await self._fetch(work, group, aside)
        return found

    async def _fetch(self, work: str, group: Sequence[tuple[str, int, str]], aside: Path) -> dict[str, Path]:
        """Fetch files by their exact paths."""
        paths = [f"{work}/{name}" for name, _, _ in group]
        run_s = self._options.transfer_s
        run = await self._client.run_code(
            shipped.NOTHING,
            fetch=paths,
            run_timeout_s=run_s,
            deadline_s=2 * run_s,
            answer_bytes=SMALL_ANSWER + sum(_encoded(size) + LONGEST_NAME * 8 for _, size, _ in group),
        )
        if (fault := quirks.fault(self._client.url, shipped.NOTHING, run)) is not None:
            raise fault
        files = quirks.fetched(self._client.url, paths, run)
        return {
            sha256: await asyncio.to_thread(self._keep, aside, name, sha256, files[path])
            for path, (name, _, sha256) in zip(paths, group, strict=True)
        }

    def _keep(self, aside: Path, name: str, sha256: str, data: bytes) -> Path:
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ServerFault(self._client.url, f"the file {name!r} that it sent is not the one that the program left")
        path = aside / sha256
        try:
            path.write_bytes(data)
        except OSError as error:
            raise ToolError(f"{path} cannot be written: {error.strerror}") from error
        return path


def _check(url: str, answer: Answer, program: Program) -> None:
    """Raise ServerFault where the list of files cannot be one of a folder within the limits."""
    most_files, most_bytes, most_of_one = program.most
    names = [name for name, _, _, _ in answer.files]
    sizes = [size for _, size, _, _ in answer.files]
    fits = len(names) <= most_files and sum(sizes) <= most_bytes and all(0 <= size <= most_of_one for size in sizes)
    if not fits or len(set(names)) < len(names) or not all(map(is_plain, names)):
        raise ServerFault(url, "its list of the files that a program left cannot be true")


def _was_killed(run: CodeRun) -> bool:
    """Whether a signal ended the program around the agent's once that had started. It is the agent's doing: it runs as
    the same user, and takes what memory there is."""
    code = None if run.run_result is None else run.run_result.return_code
    return STARTED in run.files and ANSWER not in run.files and code is not None and code < 0


def _nothing_known(run: CodeRun, work: str, program: Program) -> Outcome:
    """The program's files are lost with the one around it: all is as before it ran."""
    assert run.run_result is not None and run.run_result.return_code is not None
    return Outcome(
        reply={"killed": -run.run_result.return_code},
        folder=work,
        files={name: file.sha256 for name, file in program.files.items()},
        contents={},
        linked=frozenset(program.inputs),
        left_behind=(),
    )


def _ending(run: CodeRun) -> str:
    result = run.run_result
    assert result is not None
    return result.status if result.return_code is None else f"exit code {result.return_code}"


def _answer_bytes(program: Program, inline: int) -> int:
    listed = program.most[0] * (LONGEST_NAME + 128) + 8 * program.limits.output_bytes
    return SMALL_ANSWER + _encoded(inline) + _encoded(listed + SMALL_ANSWER)


def _encoded(size: int) -> int:
    return size * 4 // 3 + 4


def _megabytes(size: int) -> int:
    return (size + (1 << 20) - 1) >> 20
