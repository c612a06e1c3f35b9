"""Writes examples to Parquet, one file per agent, with bounded memory.

Examples are spooled as lines of JSON first. After the last one it is known which optional parts of messages occur, and
the file gets only those: a chat template that checks whether a message has a `name` does not see an empty one.
Arguments of tool calls have no common schema, so they are a column of JSON, which `datasets` restores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mappa_core import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_Example = Mapping[str, Any]

CONVERSATION_COLUMNS = ("prompt", "completion", "chosen", "rejected")
ROW_GROUP_SIZE = 1000
"""Examples in one row group, and so in memory at a time."""


def require_parquet() -> None:
    """Raise ConfigError if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ConfigError('Parquet needs pyarrow: pip install "mappa[data]"') from None


class ParquetSpool:
    """Spools the examples of one agent and writes them to a Parquet file when closed."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._columns: dict[str, Any] = {}
        """Every column so far, with a sample value."""
        self._path = path.with_suffix(".lines")
        self._target = path
        self._lines: IO[str] = self._path.open("w+", encoding="utf-8")
        self._parts: dict[str, dict[str, None]] = {name: {} for name in CONVERSATION_COLUMNS}
        """Keys of the messages in each conversation column, in order of appearance."""

    def add(self, example: _Example) -> bool:
        """Add an example. Returns False if it holds text that UTF-8 cannot encode: models may write half of a surrogate
        pair."""
        line = json.dumps(_encode_arguments(example), ensure_ascii=False)
        try:
            line.encode()
        except UnicodeEncodeError:
            return False
        self._lines.write(f"{line}\n")
        self.count += 1
        for name, value in example.items():
            self._columns.setdefault(name, value)
            if name in CONVERSATION_COLUMNS:
                self._parts[name] |= {part: None for message in value for part in message}
        return True

    def close(self) -> None:
        """Write the Parquet file if there are any examples, and remove the spool."""
        with self._lines:
            if self.count:
                self._write()
        self._path.unlink()

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        # Arrow cannot build a JSON column from Python values, but can cast a text column to one.
        plain, schema = (self._schema(text) for text in (pa.string(), pa.json_(pa.string())))
        self._lines.seek(0)
        with parquet.ParquetWriter(self._target, schema, compression="zstd") as writer:
            while rows := [json.loads(line) for line in islice(self._lines, ROW_GROUP_SIZE)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=plain).cast(schema))

    def _schema(self, arguments: pa.DataType) -> pa.Schema:
        """The schema of the columns and parts that occur; `arguments` is the type of the arguments of tool calls."""
        import pyarrow as pa

        function = pa.struct([("name", pa.string()), ("arguments", arguments)])
        calls = pa.list_(pa.struct([("id", pa.string()), ("type", pa.string()), ("function", function)]))
        conversations = {
            name: pa.list_(pa.struct([(part, calls if part == "tool_calls" else pa.string()) for part in parts]))
            for name, parts in self._parts.items()
        }
        types = {
            name: pa.infer_type([value]) for name, value in self._columns.items() if name not in CONVERSATION_COLUMNS
        }
        return pa.schema((name, {**types, **conversations}[name]) for name in self._columns)


def _encode_arguments(example: _Example) -> _Example:
    """Encode the arguments of tool calls as JSON text."""
    return {
        name: list(map(_encode_message, one)) if name in CONVERSATION_COLUMNS else one for name, one in example.items()
    }


def _encode_message(message: _Example) -> _Example:
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
