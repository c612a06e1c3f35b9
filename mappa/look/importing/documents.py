"""Reads files of logs as JSON objects, each with its place: JSON Lines, JSON, and folders of these, also compressed."""

from __future__ import annotations

import glob
import gzip
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappa.look.importing.eval_archives import read_eval_archive
from mappa.look.importing.message_forms import is_item
from mappa_core import InputError
from mappa_core.data import read_rows
from mappa_core.files import read_named_file
from mappa_core.safe_json import parse_own_json
from mappa_core.safe_walk import walk

_TABLES = (".csv", ".parquet")
_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (".json", *_LINES)
_RUN = "run.db"
"""What a folder of a run holds."""
_ARCHIVE = ".eval"
"""A log of inspect_ai: a zip file with a header and a file for each sample."""
MAX_BYTES = 1 << 30
"""Size of one file, also unpacked."""
MAX_CHARACTERS = 1_000_000_000
"""Characters of one file, or of one line where every line is a value."""
_ENVELOPE = {"data", "meta", "next_cursor"}
"""Keys of an answer of a server that holds its objects in `data`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A JSON object of a log. `place` says where it stands: `log.jsonl, line 3`."""

    row: Mapping[str, Any]
    place: str
    file: Path


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """Read the objects of files, and of all JSON files in folders, in natural order of their names.

    Raises:
        InputError: a file cannot be read, or is empty or not JSON; the message names file and line.
    """
    return [document for file in find_files(paths) for document in join_messages(list(read_file_documents(file)))]


def join_messages(documents: list[Document]) -> list[Document]:
    """The objects of a file; where all are messages, the file is one conversation without an object around it."""
    if not documents or not all(_is_message(document.row) for document in documents):
        return documents
    file = documents[0].file
    return [Document(row={"messages": [document.row for document in documents]}, place=str(file), file=file)]


def _is_message(value: Any) -> bool:
    """Whether a value is a message of a conversation, rather than an object that holds one."""
    if is_item(value):
        return True
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return not any(isinstance(held, list) and any(map(_is_message, held)) for held in value.values())


def find_files(paths: Sequence[Path], *, may_lack: bool = False) -> list[Path]:
    """Find the files that are named, all in folders that are, and those that patterns such as `logs/*.jsonl` match, in
    natural order; each once. Raises InputError where there is none, unless `may_lack`."""
    found: dict[Path, None] = {}
    for path in paths:
        try:
            found |= dict.fromkeys(_files(path))
        except InputError:
            if not may_lack:
                raise
    return list(found)


def _files(path: Path) -> list[Path]:
    """The files that a path means. Links in folders are left out: they may lead to what nobody meant to import."""
    if not path.is_dir():
        return _matching(path) if glob.has_magic(str(path)) and not path.exists() else [path]
    entries = [entry for entry in walk(Path(os.path.realpath(path))) if stat.S_ISREG(entry.status.st_mode)]
    files = [Path(entry.path) for entry in entries]
    # What Mappa itself writes is no log: its run may lie in the same folder.
    runs = {file.parent for file in files if file.name == _RUN}
    found = [
        path / file
        for file in files
        if _plain_suffix(file) in (*_SUFFIXES, _ARCHIVE) and not runs.intersection(file.parents)
    ]
    if not found:
        raise InputError(f"{path}: no file in this folder is called {', '.join(f'*{one}[.gz]' for one in _SUFFIXES)}")
    return sorted(found, key=_natural_order)


def _matching(pattern: Path) -> list[Path]:
    found = [Path(name) for name in glob.glob(str(pattern), recursive=True)]  # noqa: PTH207 - a whole path, not below one
    if not found:
        raise InputError(f"{pattern}: no file has such a name")
    return sorted((path for path in found if path.is_file()), key=_natural_order)


def _natural_order(path: Path) -> list[int | str]:
    """The path in parts, of which every second one is a number, so that they compare."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def _plain_suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def read_file_documents(path: Path) -> Iterator[Document]:
    """Read the objects of one file, without joining messages. Raises as `read_documents`."""
    if path.suffix.lower() == _ARCHIVE:
        yield Document(row=read_eval_archive(path, max_bytes=MAX_BYTES), place=str(path), file=path)
        return
    if path.suffix.lower() in _TABLES:
        rows = read_rows(path)
        for index, row in enumerate(rows.rows):
            yield Document(row=row, place=rows.place(index), file=path)
        return
    text = _read_text(path)
    if has_lines(path, text):
        yield from _read_lines(path, text)
        return
    yield from read_whole(path, text)


def is_text(path: Path) -> bool:
    """Whether a file is JSON or lines of it, rather than a table or an archive of logs."""
    return path.suffix.lower() not in (_ARCHIVE, *_TABLES)


def is_compressed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def has_lines(path: Path, text: str) -> bool:
    """Whether every line of a file is a JSON value of its own, by its name or its first line."""
    return _plain_suffix(path) in _LINES or _has_several_lines_of_json(text)


def read_whole(path: Path, text: str) -> Iterator[Document]:
    """Read the objects of a text that is one JSON value. Raises as `read_documents`."""
    whole = _parse_whole(path, text)
    if isinstance(whole, list):
        for number, row in enumerate(whole, start=1):
            yield _document(row, f"{path}, item {number}", path)
    else:
        yield _document(whole, str(path), path)


def _read_text(path: Path) -> str:
    try:
        content = read_named_file(path, max_bytes=MAX_BYTES)
        content = decompress(content) if is_compressed(path) else content
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    text = decode(path, content)
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    return text


def decode(path: Path, content: bytes) -> str:
    """Decode the content of a file. Raises InputError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def decompress(content: bytes) -> bytes:
    """Raises OSError, EOFError or zlib.error for what is damaged, or larger than MAX_BYTES."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(f"it unpacks to more than {MAX_BYTES:,} bytes")
    return data


def decode_embedded(value: Any) -> Any:
    """The value of a text that is a JSON list or object, as most SDKs write them into attributes; else what it is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return _parse(value)
        except ValueError:
            return value
    return value


def _parse(text: str) -> Any:
    return parse_own_json(text, max_characters=MAX_CHARACTERS)


def _has_several_lines_of_json(text: str) -> bool:
    """Whether the first line of several is a JSON value of its own."""
    first, _, others = text.strip().partition("\n")
    try:
        _parse(first)
    except ValueError:
        return False
    return bool(others.strip())


def _parse_whole(path: Path, text: str) -> Any:
    """Parse a text that is one JSON value. Raises InputError if it is not."""
    try:
        whole = _parse(text)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if isinstance(whole, dict) and isinstance(whole.get("data"), list) and set(whole) <= _ENVELOPE:
        return whole["data"]
    return whole


def _read_lines(path: Path, text: str) -> Iterator[Document]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield parse_line(line, f"{path}, line {number}", path)


def parse_line(line: str, place: str, path: Path) -> Document:
    """Parse one line of a file. Raises InputError, naming the place."""
    try:
        row = _parse(line)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None
    return _document(row, place, path)


def is_cut_off(text: str) -> bool:
    """Whether a text that is no JSON could become some by what is written after it."""
    try:
        json.JSONDecoder().raw_decode(text.lstrip())
    except json.JSONDecodeError as error:
        return error.pos >= len(text.strip()) or error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False


def _document(row: Any, place: str, path: Path) -> Document:
    if isinstance(row, list) and row and all(map(_is_message, row)):
        row = {"messages": row}
    if not isinstance(row, dict):
        raise InputError(f"{place}: not an object with keys: {str(row)[:80]!r}")
    return Document(row=row, place=place, file=path)
