"""Read rows from JSON, JSON Lines, CSV and Parquet files. Every error names the file and the location in it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mappa_core.errors import ConfigError, RunError, TaskError
from mappa_core.files import read_named_file

FileFormat = Literal["auto", "json", "jsonl", "csv", "parquet"]
_BY_SUFFIX: Mapping[str, FileFormat] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_SPACE = re.compile(r"\s*")
MAX_FILE_BYTES = 1 << 30
DATA_EXTRA = 'pip install "mappa-core[data]"'


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one source, in order. `place(i)` describes the location of row i: `tasks.jsonl, line 3`."""

    rows: Sequence[Mapping[str, Any]]
    place: Callable[[int], str]


def read_rows(path: str | Path, file_format: FileFormat = "auto") -> Rows:
    """Read a file of objects with named columns. `auto` uses the file's suffix, and for any but `.jsonl`, `.ndjson`,
    `.csv` and `.parquet` its content: a JSON list, or else one JSON object per line.

    Raises TaskError if the file is missing, empty, a folder, unreadable or not of its format, and ConfigError if the
    format needs a package that is not installed.
    """
    path = Path(path).expanduser()
    content = _read_bytes(path)
    if file_format == "auto":
        file_format = _BY_SUFFIX.get(path.suffix.lower(), "auto")
    if file_format == "parquet":
        return _parse_parquet(path)
    text = _decode(path, content)
    if file_format == "auto":
        file_format = "jsonl" if _is_json_lines(text) else "json"
    rows = {"json": _parse_json, "jsonl": _parse_json_lines, "csv": _parse_csv}[file_format](path, text)
    if not rows.rows:
        raise TaskError(f"{path}: the file holds no rows; name one that does")
    return rows


def read_dataset(path: str, split: str, *, config: str | None = None, revision: str | None = None) -> Rows:
    """Read a split of a data set of the Hugging Face hub or a folder. Raises TaskError, or ConfigError."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    try:
        import datasets
    except ImportError:
        raise ConfigError(f"tasks.use=huggingface needs datasets, which is not installed: {DATA_EXTRA}") from None
    where, folder = f"data set {path}", Path(path).expanduser()
    try:
        rows = datasets.load_dataset(str(folder) if folder.is_dir() else path, config, split=split, revision=revision)
    except (datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        raise TaskError(f"{where}, split {split}: {error}") from error
    return Rows(rows, lambda index: f"{where}, split {split}, row {index + 1}")


def _read_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise TaskError(f"{path} is a folder; name the file in it")
    if not path.exists():
        raise TaskError(f"{path}: there is no such file")
    try:
        content = read_named_file(path, max_bytes=MAX_FILE_BYTES)
    except RunError as error:
        raise TaskError(str(error)) from error
    if not content.strip():
        raise TaskError(f"{path}: the file is empty")
    return content


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # Spreadsheets begin their files with a mark of UTF-8.
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise TaskError(f"{path}: byte {error.start} (0x{byte:02x}) is not UTF-8; save the file as UTF-8") from None


def _is_json_lines(text: str) -> bool:
    first, _, rest = text.lstrip().partition("\n")
    if not first.startswith("{"):
        return False
    try:
        json.loads(first)
    except json.JSONDecodeError:
        # One object over several lines goes on with a key; a second object says that this line is broken.
        return rest.lstrip().startswith("{")
    return True


def _parse_json(path: Path, text: str) -> Rows:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    if not isinstance(rows, list):
        kind = _json_type(rows)
        raise TaskError(f"{path}: holds one JSON {kind}; a list of objects, or one object a line, is needed")

    def place(index: int) -> str:
        return f"{path}, row {index + 1} (line {_line_of_element(text, index)})"

    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise TaskError(f"{place(index)}: a JSON {_json_type(row)}, not an object with named columns")
    return Rows(rows, place)


def _line_of_element(text: str, index: int) -> int:
    """Line number on which element `index` of the JSON list `text` begins."""
    # Parsed again, as the parser of a whole list does not say where its elements stand; only for a message.
    decoder, position = json.JSONDecoder(), text.index("[")
    for element in range(index + 1):
        position += 1  # past the bracket or the comma
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # it matches nothing as well
        if element < index:
            position = text.index(",", decoder.raw_decode(text, position)[1])
    return text.count("\n", 0, position) + 1


def _parse_json_lines(path: Path, text: str) -> Rows:
    rows, lines = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise TaskError(f"{path}, line {number}, column {error.colno}: not JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise TaskError(f"{path}, line {number}: a JSON {_json_type(row)}, not an object with named columns")
        rows.append(row)
        lines.append(number)
    return Rows(rows, lambda index: f"{path}, line {lines[index]}")


def _json_type(value: object) -> str:
    kinds = {dict: "object", list: "list", str: "string", int: "number", float: "number", bool: "boolean"}
    return "null" if value is None else kinds[type(value)]


def _parse_csv(path: Path, text: str) -> Rows:
    """Read CSV; cells are text, an empty cell is None."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            # Of too many cells the rest stands under the key None, of too few the missing ones are None.
            if None in row or None in row.values():
                raise TaskError(f"{path}, line {reader.line_num}: not as many cells as the first line names columns")
            rows.append({column: cell or None for column, cell in row.items()})
            lines.append(reader.line_num)
    except csv.Error as error:
        raise TaskError(f"{path}, line {reader.line_num + 1}: not CSV: {error}") from None
    return Rows(rows, lambda index: f"{path}, line {lines[index]}")


def _parse_parquet(path: Path) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow, which is not installed: {DATA_EXTRA}") from None
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise TaskError(f"{path}: not Parquet: {error}") from error
    if not rows:
        raise TaskError(f"{path}: the file holds no rows; name one that does")
    return Rows(rows, lambda index: f"{path}, row {index + 1}")
