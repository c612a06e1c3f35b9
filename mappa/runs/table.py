"""Tables of a run: an iterable of typed rows that turns into a data frame of pandas or Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mappa.runs.html_table import html_table
from mappa_core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class TableRow(Protocol):
    """A row that names its columns."""

    def columns(self) -> Mapping[str, Any]: ...


Row = TypeVar("Row", bound=TableRow)

SHOWN_ROWS, SHOWN_COLUMNS, SHOWN_CHARACTERS = 10, 24, 60
"""What a notebook shows of a table: its first rows and columns, and of a text its beginning."""


class Table(Generic[Row]):
    """Rows of one kind, in order. They are read from the run anew, one after another, each time the table is used."""

    def __init__(self, read: Callable[[], Iterable[Row]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Row]:
        return iter(self._read())

    def __repr__(self) -> str:
        kind = next((type(row).__name__ for row in self), None)
        return "Table without rows" if kind is None else f"Table of {kind}: iterate over it, or call to_pandas()"

    def _repr_html_(self) -> str:
        """The beginning of the table, for notebooks."""
        found = list(islice(self, SHOWN_ROWS + 1))
        if not found:
            return "<div>no rows</div>"
        rows = [row.columns() for row in found[:SHOWN_ROWS]]
        names = list(dict.fromkeys(name for row in rows for name in row))
        parts = [f"the first {SHOWN_ROWS} rows"] * (len(found) > SHOWN_ROWS)
        parts += [f"{SHOWN_COLUMNS} of {len(names)} columns"] * (len(names) > SHOWN_COLUMNS)
        caption = f"{', '.join(parts)}; to_pandas() has all" if parts else ""
        shown = names[:SHOWN_COLUMNS]
        return html_table(caption, shown, ([_cell(row.get(name)) for name in shown] for row in rows))

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a data frame. Raises ConfigError if pandas is not installed."""
        return _import("pandas", "to_pandas()").DataFrame(self._columns())

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table. Raises ConfigError if pyarrow is not installed."""
        return _import("pyarrow", "to_arrow()").table(self._columns())

    def _columns(self) -> dict[str, list[Any]]:
        rows = [row.columns() for row in self]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [_encodable(row.get(name)) for row in rows] for name in names}


class RolloutTable(Table[Row]):
    """A table whose rows belong to rollouts. Counterfactual rollouts are left out unless `where` names their split."""

    def __init__(self, read: Callable[[str | None, int | None], Iterable[Row]]) -> None:
        super().__init__(lambda: read(None, None))
        self._read_where = read

    def where(self, *, split: str | None = None, iteration: int | None = None) -> Table[Row]:
        """The rows of one split, of one iteration, or of both; None means any."""
        return Table(lambda: self._read_where(split, iteration))


def _import(package: str, user: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise ConfigError(f'{user} needs {package}: pip install "mappa[data]"') from None


def _cell(value: Any) -> str:
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _encodable(value: Any) -> Any:
    """Replaces halves of surrogate pairs, which models write and Arrow rejects."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
