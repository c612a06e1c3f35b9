"""Examples to Parquet, one file an agent, without ever holding them all.

Examples are put down as lines of JSON first; when the last one is there, it is known which optional parts of messages
occur, and the file gets those alone: a template that asks whether a message has a `name` is not told of an empty one.
What calls are made with is of no one shape, so it is a column of JSON, which `datasets` gives back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mappa_core.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

Example = Mapping[str, Any]

CONVERSATIONS = ("prompt", "completion", "chosen", "rejected")
ROWS = 1000
"""Examples of one row group, and so in memory at a time."""
DATA_EXTRA = 'pip install "mappa-core[data]"'


def require_parquet() -> None:
    """Raise ConfigError where there is nothing to write Parquet with."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ConfigError(f"writing Parquet needs pyarrow, which is not installed: {DATA_EXTRA}") from None


class Spool:
    """The examples of one agent on their way to a file."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._columns: dict[str, Any] = {}
        """Every column so far, with a value of it."""
        self._path = path.with_suffix(".lines")
        self._target = path
        self._lines: IO[str] = self._path.open("w+", encoding="utf-8")
        self._parts: dict[str, dict[str, None]] = {name: {} for name in CONVERSATIONS}
        """Of the messages of each conversation, in order."""

    def add(self, example: Example) -> bool:
        """Whether it could be taken; UTF-8 has no word for half a character, which models may write."""
        line = json.dumps(_storable(example), ensure_ascii=False)
        try:
            line.encode()
        except UnicodeEncodeError:
            return False
        self._lines.write(f"{line}\n")
        self.count += 1
        for name, value in example.items():
            self._columns.setdefault(name, value)
            if name in CONVERSATIONS:
                self._parts[name] |= {part: None for message in value for part in message}
        return True

    def close(self) -> None:
        """Write the file, if there is anything to write, and remove what led to it."""
        with self._lines:
            if self.count:
                self._write()
        self._path.unlink()

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        # Arrow makes no column of JSON of Python values, but of one of text.
        plain, schema = (self._schema(text) for text in (pa.string(), pa.json_(pa.string())))
        self._lines.seek(0)
        with parquet.ParquetWriter(self._target, schema, compression="zstd") as writer:
            while rows := [json.loads(line) for line in islice(self._lines, ROWS)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=plain).cast(schema))

    def _schema(self, arguments: pa.DataType) -> pa.Schema:
        """The columns and parts that occur; `arguments` is the type of those of calls."""
        import pyarrow as pa

        function = pa.struct([("name", pa.string()), ("arguments", arguments)])
        calls = pa.list_(pa.struct([("id", pa.string()), ("type", pa.string()), ("function", function)]))
        conversations = {
            name: pa.list_(pa.struct([(part, calls if part == "tool_calls" else pa.string()) for part in parts]))
            for name, parts in self._parts.items()
        }
        types = {name: pa.infer_type([value]) for name, value in self._columns.items() if name not in CONVERSATIONS}
        return pa.schema((name, {**types, **conversations}[name]) for name in self._columns)


def _storable(example: Example) -> Example:
    """With the arguments of calls as JSON text."""
    return {name: list(map(_message, one)) if name in CONVERSATIONS else one for name, one in example.items()}


def _message(message: Example) -> Example:
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
