"""Synchronises copies of trajectories' folders with one server: updates them before a program and reads them after.

The local folder is the truth. Before each program the server compares its copy with it by hash; what the server lost is
sent again before the program starts. After a failed call the content of a copy is unknown: the next call begins a new
copy in a folder with another name.
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

from mappa_core import ToolError, ToolLimits
from mappa_core.transport import one_line
from mappa_sandbox import PROGRAM_ENVIRONMENT, program_job
from mappa_sandboxfusion import quirks, remote_archive
from mappa_sandboxfusion.chunks import FileChunk, RemoteAnswer, pack, pack_chunks, read_chunks, split_file
from mappa_sandboxfusion.client import BASE_ANSWER_BYTES, FusionClient, RunCodeResponse, ServerFault
from mappa_sandboxfusion.local import MAX_NAME_BYTES, LocalFile, is_plain_name
from mappa_sandboxfusion.options import Options
from mappa_sandboxfusion.probe import Findings
from mappa_sandboxfusion.remote_folders import FolderCopies, FolderCopy

CLOSE_TIMEOUT_S = 10.0
MEMORY_SPARE_MB = 512
"""Memory for the interpreter in the server's own limit, which holds for each process, beyond the program's limit."""
ANSWER_FILE, CHANGED_FILE, STARTED_FILE = "answer.json", "changed.bin", "started"


class _LostState(Exception):
    """The server lost files. `inputs` are the hashes of the lost inputs."""

    def __init__(self, what: str, inputs: Sequence[str]) -> None:
        super().__init__(what)
        self.inputs = tuple(inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteProgram:
    """A program and the local folder in a copy of which it runs: the regular files of the folder, and the task's inputs
    that are links there, each by name."""

    code: str
    arguments: tuple[str, ...]
    limits: ToolLimits
    folder: Path
    files: Mapping[str, LocalFile]
    inputs: Mapping[str, tuple[Path, LocalFile]]

    @property
    def max_left(self) -> tuple[int, int, int]:
        """Limits on what the program leaves: number of files, bytes in total, bytes of one file. Each is the tool's
        limit, or what existed before where that is more."""
        sizes = [file.size for file in self.files.values()]
        limits = self.limits
        return (
            max(limits.workspace_files, len(sizes)),
            max(limits.workspace_bytes, sum(sizes)),
            max([limits.file_bytes, *sizes]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOutcome:
    """The result of a program that ran in `folder`: the runner's reply, all `files` afterwards (name to sha256), the
    bytes of those that changed (sha256 to a file), inputs that are still links, and everything else."""

    reply: Mapping[str, Any]
    folder: str
    files: Mapping[str, str]
    contents: Mapping[str, Path]
    linked: frozenset[str]
    irregular_files: tuple[str, ...]


class RemoteServer:
    """Runs programs on one server concurrently, each in its own copy of the folder."""

    def __init__(self, client: FusionClient, findings: Findings, archive: bytes, options: Options) -> None:
        """`archive` is the archive of `remote_archive.build_archive`, compiled by the server's Python."""
        self.findings = findings
        self._client = client
        self._archive = archive
        self._options = options
        self._chunk = options.chunk_mb << 20
        self._keeps_files = findings.keeps_files
        self._copies = FolderCopies()
        self._inputs: dict[str, list[int]] = {}
        self._sending: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def has_copy(self, folder: Path) -> bool:
        """Whether the server has a copy of `folder`."""
        return folder in self._copies

    async def run(self, program: RemoteProgram, aside: Path) -> RemoteOutcome:
        """Run `program`, and fetch the files that it changed into the empty folder `aside`.

        Raises:
            ServerFault: it did not run, or its result is unknown.
            ToolError: a local file cannot be read.
        """
        for _ in range(2):  # after files were lost once more, with all of them sent anew
            copy = self._copies.take(program.folder)
            try:
                outcome = await self._run_in_copy(copy, program, aside)
            except _LostState as error:
                what = str(error)
                self._copies.drop(program.folder)
                for sha256 in error.inputs:
                    self._inputs.pop(sha256, None)
            except BaseException:
                self._copies.drop(program.folder)
                raise
            else:
                self._copies.give_back(program.folder)
                if not self._keeps_files or "killed" in outcome.reply:  # a killed program may leave partial files
                    self._copies.drop(program.folder)
                return outcome
        self._keeps_files = False  # several servers may share the address: send everything in one call
        raise ServerFault(
            self._client.url, f"it lost {what} before the program started, twice. From now on it gets all in one call"
        )

    async def close(self) -> None:
        """Remove everything on the server, within a short deadline. Raises ServerFault where it does not answer."""
        job = self._job(end=True)
        deadline_s = self._options.connect_timeout_s + CLOSE_TIMEOUT_S
        with suppress(_LostState):
            self._parse_answer(
                await self._call(job, b"", fetch=[ANSWER_FILE], run_s=CLOSE_TIMEOUT_S, deadline_s=deadline_s)
            )

    async def _run_in_copy(self, copy: FolderCopy, program: RemoteProgram, aside: Path) -> RemoteOutcome:
        parts = [
            part
            for name, file in program.files.items()
            if copy.files.get(name) != file.sha256
            for part in split_file("file", name, program.folder / name, file, self._chunk)
        ]
        if not self._keeps_files:
            parts += [part for path, file in program.inputs.values() for part in self._input_parts(path, file)]
            return await self._send_and_run(copy, program, parts, aside)
        for path, file in program.inputs.values():
            await self._send_input(path, file)
        *early, last = pack_chunks(parts, self._chunk)
        for batch in early:
            await self._send(copy, batch)
        return await self._send_and_run(copy, program, last, aside)

    def _input_parts(self, path: Path, file: LocalFile) -> list[FileChunk]:
        return list(split_file("input", file.sha256, path, file, self._chunk))

    async def _send_input(self, path: Path, file: LocalFile) -> None:
        async with self._sending[file.sha256]:  # several trajectories may want the same one
            if file.sha256 not in self._inputs:
                for batch in pack_chunks(self._input_parts(path, file), self._chunk):
                    await self._send(None, batch)

    async def _send(self, copy: FolderCopy | None, batch: Sequence[FileChunk]) -> None:
        job = self._job(copy, parts=[part.row for part in batch])
        data = await asyncio.to_thread(read_chunks, batch)
        run_s = self._options.transfer_s
        self._record(
            copy,
            self._parse_answer(await self._call(job, data, fetch=[ANSWER_FILE], run_s=run_s, deadline_s=2 * run_s)),
        )

    async def _send_and_run(
        self, copy: FolderCopy, program: RemoteProgram, batch: Sequence[FileChunk], aside: Path
    ) -> RemoteOutcome:
        """Send the last files and run the program."""
        limits, options = program.limits, self._options
        work = f"{self.findings.root}/{copy.folder}/work"
        inline = self._chunk if self._keeps_files else program.max_left[1]
        job = self._job(
            copy,
            parts=[part.row for part in batch],
            delete=[name for name in copy.files if name not in program.files],
            before={name: file.sha256 for name, file in program.files.items()},
            inputs={name: file.sha256 for name, (_, file) in program.inputs.items()},
            stamps={file.sha256: self._inputs.get(file.sha256) for _, file in program.inputs.values()},
            order=self._program_order(program, work),
            grace_s=options.margin_s,
            inline_bytes=inline,
            most=program.max_left,
        )
        run_s = limits.wall_s + 2 * options.margin_s
        run = await self._call(
            job,
            await asyncio.to_thread(read_chunks, batch),
            fetch=[ANSWER_FILE, CHANGED_FILE, STARTED_FILE],
            run_s=run_s,
            deadline_s=run_s + options.transfer_s,
            answer_bytes=_max_answer_bytes(program, inline),
            memory_limit_mb=_ceil_megabytes(limits.memory_bytes) + MEMORY_SPARE_MB if options.memory_limit else None,
        )
        if _was_killed(run):
            return _killed_outcome(run, work, program)
        answer = self._parse_answer(run)
        self._record(copy, answer)
        if answer.reply is None or "fault" in answer.reply:
            raise ServerFault(
                self._client.url, f"the runner failed: {(answer.reply or {}).get('fault', 'it gave no reply')}"
            )
        _check_file_list(self._client.url, answer, program)
        changed = quirks.check_fetched(self._client.url, [CHANGED_FILE], run)[CHANGED_FILE]
        contents = await self._collect_contents(work, answer, changed, program, aside)
        copy.files = {name: sha256 for name, _, sha256, _ in answer.files}
        return RemoteOutcome(
            reply=answer.reply,
            folder=work,
            files=copy.files,
            contents=contents,
            linked=frozenset(answer.linked),
            irregular_files=tuple(answer.left),
        )

    def _program_order(self, program: RemoteProgram, work: str) -> dict[str, Any]:
        inputs = [f"{self.findings.root}/inputs/{file.sha256}" for _, file in program.inputs.values()]
        return asdict(
            program_job(program.code, program.limits, folder=work, arguments=program.arguments, inputs=inputs)
        )

    # --- calls ---

    def _job(self, copy: FolderCopy | None = None, **fields: Any) -> dict[str, Any]:
        """Build the job for remote/run.py; without `fields` it does nothing."""
        return {
            "root": self.findings.root,
            "folder": None if copy is None else copy.folder,
            "fresh": copy is not None and not copy.created,
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
    ) -> RunCodeResponse:
        with self._copies.removal() as useless:
            text = json.dumps({**job, "remove": useless}).encode()  # in ASCII: a program may be no UTF-8
            files = {"job.json": text, "upload.bin": data, "archive.zip": self._archive}
            run = await self._client.run_code(
                remote_archive.RUN_PROGRAM, files=files, fetch=fetch, run_timeout_s=run_s, deadline_s=deadline_s, **more
            )
            if (fault := quirks.find_fault(self._client.url, remote_archive.RUN_PROGRAM, run)) is not None:
                raise fault
        return run

    def _parse_answer(self, run: RunCodeResponse) -> RemoteAnswer:
        """Parse the answer of remote/run.py. Raises _LostState where the server lost files, ServerFault where there is
        no answer."""
        url, result = self._client.url, run.run_result
        assert result is not None  # or there would be a fault
        if result.status != "Finished" or result.return_code != 0:
            last = (result.stderr or "").strip().rpartition("\n")[2]
            raise ServerFault(
                url, f"the program around the agent's ended with {_describe_ending(run)}: {one_line(last)}"
            )
        try:
            answer = msgspec.json.decode(quirks.check_fetched(url, [ANSWER_FILE], run)[ANSWER_FILE], type=RemoteAnswer)
        except msgspec.DecodeError as error:
            raise ServerFault(url, f"its {ANSWER_FILE} is damaged: {error}") from error
        if answer.lost is not None:
            raise _LostState(answer.lost, answer.gone)
        return answer

    def _record(self, copy: FolderCopy | None, answer: RemoteAnswer) -> None:
        self._inputs |= answer.stamps
        if copy is not None:
            copy.created = True

    # --- results ---

    async def _collect_contents(
        self, work: str, answer: RemoteAnswer, changed: bytes, program: RemoteProgram, aside: Path
    ) -> dict[str, Path]:
        """Save the bytes of all changed files in `aside`; return the saved files by hash."""
        contents: dict[str, Path] = {}
        later: list[tuple[str, int, str]] = []
        for name, size, sha256, at in answer.files:
            before = program.files.get(name)
            if before is not None and before.sha256 == sha256:
                continue
            if at is None:
                later.append((name, size, sha256))
            else:
                contents[sha256] = await asyncio.to_thread(self._save, aside, name, sha256, changed[at : at + size])
        for group in pack(later, lambda file: file[1], self._chunk):
            if group:
                contents |= await self._fetch(work, group, aside)
        return contents

    async def _fetch(self, work: str, group: Sequence[tuple[str, int, str]], aside: Path) -> dict[str, Path]:
        """Fetch files by their exact paths."""
        paths = [f"{work}/{name}" for name, _, _ in group]
        run_s = self._options.transfer_s
        run = await self._client.run_code(
            remote_archive.EMPTY_PROGRAM,
            fetch=paths,
            run_timeout_s=run_s,
            deadline_s=2 * run_s,
            answer_bytes=BASE_ANSWER_BYTES + sum(_base64_size(size) + MAX_NAME_BYTES * 8 for _, size, _ in group),
        )
        if (fault := quirks.find_fault(self._client.url, remote_archive.EMPTY_PROGRAM, run)) is not None:
            raise fault
        files = quirks.check_fetched(self._client.url, paths, run)
        return {
            sha256: await asyncio.to_thread(self._save, aside, name, sha256, files[path])
            for path, (name, _, sha256) in zip(paths, group, strict=True)
        }

    def _save(self, aside: Path, name: str, sha256: str, data: bytes) -> Path:
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ServerFault(self._client.url, f"the file {name!r} that it sent is not the one that the program left")
        path = aside / sha256
        try:
            path.write_bytes(data)
        except OSError as error:
            raise ToolError(f"{path} cannot be written: {error.strerror}") from error
        return path


def _check_file_list(url: str, answer: RemoteAnswer, program: RemoteProgram) -> None:
    """Raise ServerFault where the list of files cannot be one of a folder within the limits."""
    most_files, most_bytes, most_of_one = program.max_left
    names = [name for name, _, _, _ in answer.files]
    sizes = [size for _, size, _, _ in answer.files]
    fits = len(names) <= most_files and sum(sizes) <= most_bytes and all(0 <= size <= most_of_one for size in sizes)
    if not fits or len(set(names)) < len(names) or not all(map(is_plain_name, names)):
        raise ServerFault(url, "its list of the files that a program left cannot be true")


def _was_killed(run: RunCodeResponse) -> bool:
    """Whether a signal ended the program around the agent's after that had started. The agent's program is the cause:
    it runs as the same user, and may take all memory."""
    code = None if run.run_result is None else run.run_result.return_code
    return STARTED_FILE in run.files and ANSWER_FILE not in run.files and code is not None and code < 0


def _killed_outcome(run: RunCodeResponse, work: str, program: RemoteProgram) -> RemoteOutcome:
    """Build the outcome of a killed program: its changes are lost, all files are as before."""
    assert run.run_result is not None and run.run_result.return_code is not None
    return RemoteOutcome(
        reply={"killed": -run.run_result.return_code},
        folder=work,
        files={name: file.sha256 for name, file in program.files.items()},
        contents={},
        linked=frozenset(program.inputs),
        irregular_files=(),
    )


def _describe_ending(run: RunCodeResponse) -> str:
    result = run.run_result
    assert result is not None
    return result.status if result.return_code is None else f"exit code {result.return_code}"


def _max_answer_bytes(program: RemoteProgram, inline: int) -> int:
    listed = program.max_left[0] * (MAX_NAME_BYTES + 128) + 8 * program.limits.output_bytes
    return BASE_ANSWER_BYTES + _base64_size(inline) + _base64_size(listed + BASE_ANSWER_BYTES)


def _base64_size(size: int) -> int:
    return size * 4 // 3 + 4


def _ceil_megabytes(size: int) -> int:
    return (size + (1 << 20) - 1) >> 20
