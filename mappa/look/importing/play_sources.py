"""Where plays come from, and which of them are new: files of logs that grow, or anything else that names its plays."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mappa.look.importing.documents import Document, read_documents
from mappa.look.importing.formats import FORMATS, find_format
from mappa.look.importing.growing_files import FileReading, FileState, read_new_parts, read_ranges
from mappa.look.importing.log_mapping import Format, LoggedTrajectory, LogMapping
from mappa_core import InputError

T = TypeVar("T")
PLAY, FILE = "play/", "file/"
"""Prefixes of notes: of every play that was read, and of every file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayNote:
    """What a run keeps of a play that was read, beside its trajectory (None: it has no action so far). `digest` is of
    all that the log says of it, `begin` of its task and its first `actions`, by which a play that went on is known
    again. `places` are those of its lines where it has several: the number of the file, the byte and the length."""

    trajectory: str | None
    digest: str
    begin: str
    actions: int
    places: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPlay:
    """A play of a source. `key` is its name among all plays of the run; a play of the same key that says something else
    went on since it was read."""

    key: str
    log: LoggedTrajectory
    places: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlays:
    """What is new in a source. `notes` are kept with the plays, by name (None: the note is removed), and are there when
    the source is read again. `unfinished` says what is still being written."""

    plays: Sequence[LoggedPlay]
    format: Format | None
    notes: Mapping[str, Any] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()


class Notes(Protocol):
    """What a run keeps for its sources."""

    def note(self, name: str, kind: type[T]) -> T | None: ...

    def notes(self, prefix: str, kind: type[T]) -> dict[str, T]: ...


class NoNotes(Notes):
    """Those of a run that is not there yet."""

    def note(self, name: str, kind: type[T]) -> T | None:
        return None

    def notes(self, prefix: str, kind: type[T]) -> dict[str, T]:
        return {}


class PlaySource(Protocol):
    """Where the plays of an imported run come from."""

    @property
    def name(self) -> str:
        """What people call it: paths, an address."""
        ...

    def read_new(self, notes: Notes) -> NewPlays:
        """Read what is new since `notes` were kept; plays that did not change may be among it. Raises InputError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFiles(PlaySource):
    """Logs in files: `paths` are files, folders and patterns of names. `file_format` None finds the format from the
    first object. `is_awaited`: there may be no file and no action yet."""

    paths: Sequence[Path]
    mapping: LogMapping
    file_format: Format | None = None
    is_awaited: bool = False

    @property
    def name(self) -> str:
        return ", ".join(map(str, self.paths))

    def read_new(self, notes: Notes) -> NewPlays:
        states = notes.notes(FILE, FileState)
        parts = read_new_parts(self.paths, states, may_lack=self.is_awaited)
        documents = [document for part in parts for document in part.documents]
        chosen = self.file_format
        if documents:
            chosen = chosen or find_format(documents)
            reader = _NewPlayReader(notes, states, self.mapping, chosen)
            plays = list(reader.read(parts))
            counts = reader.counts
        else:
            plays, counts = [], Counter()
        changes: dict[str, Any] = {FILE + one.former_name: None for one in parts if one.former_name is not None}
        for part in parts:
            if part.state is not None:
                changes[FILE + part.name] = replace(part.state, plays=counts[part.state.number])
        unfinished = tuple(part.unfinished for part in parts if part.unfinished is not None)
        return NewPlays(plays=plays, format=chosen, notes=changes, unfinished=unfinished)


class _NewPlayReader:
    """Reads plays from what is new in files, and finds out which of them are known."""

    def __init__(self, notes: Notes, states: Mapping[str, FileState], mapping: LogMapping, file_format: Format) -> None:
        self._notes = notes
        self._mapping = mapping
        self._format = FORMATS[file_format]
        self._name = file_format
        self._paths = {state.number: Path(name) for name, state in states.items()}
        self.counts = Counter({state.number: state.plays for state in states.values()})
        """Plays by the number of their file."""

    def read(self, parts: Sequence[FileReading]) -> Iterator[LoggedPlay]:
        if self._format.trace_ids is not None:
            yield from self._read_traces(parts)
            return
        for part in parts:
            if part.documents and part.state is not None:
                yield from self._read_file(part, part.state)

    def _read_file(self, part: FileReading, state: FileState) -> Iterator[LoggedPlay]:
        documents, is_whole = part.documents, part.is_whole
        if not is_whole and self._format.is_part(documents[0].row):
            documents, is_whole = tuple(read_documents([part.path])), True
        logs = self._logs(documents)
        is_known = is_whole and self.counts[state.number] > 0
        known = self._notes.notes(f"{PLAY}{state.number}/", PlayNote) if is_known else {}
        for log, matched in _match_plays(logs, known):
            name = matched
            if name is None:
                name = f"{self.counts[state.number]:07d}"
                self.counts[state.number] += 1
            yield LoggedPlay(key=f"{state.number}/{name}", log=log)

    def _read_traces(self, parts: Sequence[FileReading]) -> Iterator[LoggedPlay]:
        """Read the traces that something new is of, each with all of its objects."""
        documents, places = list[Document](), defaultdict[str, list[tuple[int, int, int]]](list)
        read_again = {part.state.number for part in parts if part.is_whole and part.state is not None}
        for part in parts:
            if part.state is not None:
                self._paths[part.state.number] = part.path
                ranges = part.ranges or ((0, 0),) * len(part.documents)
                for document, (start, length) in zip(part.documents, ranges, strict=True):
                    documents.append(document)
                    for trace in self._ids(document):
                        places[trace].append((part.state.number, start, length))
        earlier = {
            place
            for trace in places
            if (known := self._notes.note(f"{PLAY}trace/{trace}", PlayNote)) is not None
            for place in known.places
            if place[0] not in read_again
        }
        for place in sorted(earlier):
            for document in self._read_place(place):
                found = self._ids(document) & places.keys()
                documents += [document] if found else []
                for trace in found:
                    places[trace].append(place)
        for log in self._logs(documents):
            if log.run is not None and log.run in places:
                yield LoggedPlay(key=f"trace/{log.run}", log=log, places=tuple(sorted(set(places[log.run]))))

    def _ids(self, document: Document) -> frozenset[str]:
        assert self._format.trace_ids is not None  # asked of formats of traces alone
        return frozenset(self._format.trace_ids(document))

    def _read_place(self, place: tuple[int, int, int]) -> Iterable[Document]:
        """The objects at a place; of a file that is gone there are none."""
        number, start, length = place
        path = self._paths.get(number)
        if path is None or not path.exists():
            return ()
        return read_ranges(path, [(start, length)]) if length else read_documents([path])

    def _logs(self, documents: Sequence[Document]) -> list[LoggedTrajectory]:
        return parse_documents(documents, self._mapping, self._name)


def parse_documents(documents: Sequence[Document], mapping: LogMapping, chosen: Format) -> list[LoggedTrajectory]:
    """Read the rollouts of objects of a format. Raises InputError, naming file, line and key."""
    try:
        return FORMATS[chosen].read(documents, mapping)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # whatever is in the log
        names = ", ".join(dict.fromkeys(str(document.file) for document in documents))
        raise InputError(
            f"{names}: read as {chosen}, but it is not in this format ({type(error).__name__}: {error}); "
            "another is chosen with --format"
        ) from error


def _match_plays(
    logs: Sequence[LoggedTrajectory], known: Mapping[str, PlayNote]
) -> Iterator[tuple[LoggedTrajectory, str | None]]:
    """The logs with the names of the known plays that they are, or that they continue; None: it is a new one."""
    same = defaultdict[str, list[str]](list)
    for name in sorted(known, reverse=True):  # The first one is taken first.
        same[known[name].digest].append(name)
    found: list[str | None] = []
    for log in logs:
        names = same[digest_play(log)] if known else None
        found.append(names.pop() if names else None)
    taken = set(found)
    begins = {(note.actions, note.begin): name for name, note in known.items() if name not in taken}
    lengths = sorted({length for length, _ in begins}, reverse=True)
    for log, same_name in zip(logs, found, strict=True):
        begun = ((length, digest_begin(log, length)) for length in lengths if length <= len(log.acts))
        yield log, same_name or next((begins.pop(one) for one in begun if one in begins), None)


def digest_play(log: LoggedTrajectory) -> str:
    """Digest of all that a log says of a play and may still change: its actions, how it ended and its labels."""
    said = [log.outcome, log.error, log.task.reference, repr(log.labels), log.entries]
    return _digest([*_list_acts(log, len(log.acts)), said])


def digest_begin(log: LoggedTrajectory, actions: int) -> str:
    """Digest of the task of a play and of its first actions."""
    return _digest(_list_acts(log, actions))


def _list_acts(log: LoggedTrajectory, actions: int) -> list[Any]:
    acts = log.acts[:actions]
    told = [
        [
            act.agent, act.reply.content, act.reply.reasoning, [repr(call) for call in act.reply.tool_calls],
            [[result.status, result.stdout] for _, result in act.results],
        ]
        for act in acts
    ]  # fmt: skip
    return [log.task.id, log.task.prompt, told]


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, default=repr).encode()).hexdigest()[:32]
