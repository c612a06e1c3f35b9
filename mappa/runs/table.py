"""Tables of a run: an iterable of typed rows that turns into a data frame of pandas or Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mappa_core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class TableRow(Protocol):
    """A row that names its columns."""

    def columns(self) -> Mapping[str, Any]: ...


Row = TypeVar("Row", bound=TableRow)


class Table(Generic[Row]):
    """Rows of one kind, in order. They are read from the run anew, one after another, each time the table is used."""

    def __init__(self, read: Callable[[], Iterable[Row]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Row]:
        return iter(self._read())

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


def _encodable(value: Any) -> Any:
    """Replaces halves of surrogate pairs, which models write and Arrow rejects."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
