"""Values of agents' files as plain arrays: all that the program that opens files may hand to the one that checks them.

A message is a JSON value whose arrays follow it as bytes. Whatever the bytes are, reading one gives numbers, texts and
arrays of a closed list of types, or an error.
"""

import json
import os
import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

MAX_MESSAGE_BYTES = 1 << 30
"""Limit of the JSON value and of each array."""
_PLAIN_TYPE = re.compile(r"[|<]([biuf][1248]|[mM]8\[[a-zA-Z]{1,2}\])")
_LENGTH_BYTES = 8


class SparseTable(NamedTuple):
    """The parts of a sparse matrix in rows."""

    shape: tuple[int, int]
    data: Any
    indices: Any
    indptr: Any


def write_message(pipe: int, value: Any) -> None:
    """Write JSON values with plain arrays among them."""
    arrays: list[Any] = []

    def set_aside(array: Any) -> dict[str, Any]:
        arrays.append(np.ascontiguousarray(array))
        return {"array": [arrays[-1].dtype.str, arrays[-1].shape]}

    text = json.dumps(value, default=set_aside).encode()
    write_all(pipe, len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for array in arrays:
        write_all(pipe, array.reshape(-1).view(np.uint8))


def write_all(pipe: int, data: Any) -> None:
    """Write all bytes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def read_message(pipe: int) -> Any:
    """Read what `write_message` wrote. Raises EOFError where it ends too early, and ValueError where it is none."""
    length = int.from_bytes(read_exactly(pipe, _LENGTH_BYTES), "little")

    def read_array(part: dict[str, Any]) -> Any:
        if "array" not in part:
            return part
        kind, shape = part["array"]
        if _PLAIN_TYPE.fullmatch(kind) is None:
            raise ValueError("it is no plain array")
        count = int(np.prod(shape, dtype=object))
        return np.frombuffer(read_exactly(pipe, count * np.dtype(kind).itemsize), kind).reshape(shape)

    return json.loads(bytes(read_exactly(pipe, length)), object_hook=read_array)


def read_exactly(pipe: int, size: int) -> bytearray:
    """Read `size` bytes."""
    if not 0 <= size <= MAX_MESSAGE_BYTES:
        raise ValueError("a message is too long")
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = os.readv(pipe, [rest])
        if not count:
            raise EOFError("a message ends too early")
        rest = rest[count:]
    return data


def is_plain(dtype: Any) -> bool:
    """Whether arrays of this type travel as they are."""
    return isinstance(dtype, np.dtype) and _PLAIN_TYPE.fullmatch(dtype.str) is not None


def table_to_plain(value: Any) -> dict[str, Any] | None:
    """Convert a table, an array of two dimensions or a sparse matrix; None for all else. `exact` says whether a model
    would see no difference."""
    if isinstance(value, pd.DataFrame):
        names, index = [name_to_plain(name) for name in value.columns], index_to_plain(value.index)
        return {"form": "frame", "names": names, "index": index, **cells_to_plain(value)}
    if hasattr(value, "tocsr") and len(value.shape) == 2 and not pd.api.types.is_complex_dtype(value.dtype):
        rows = value.tocsr() if is_plain(value.dtype) else value.tocsr().astype(float)
        parts = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr}
        return {"form": "sparse", "shape": [int(size) for size in rows.shape], **parts, "exact": True}
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.names is None:
        return {"form": "matrix", **cells_to_plain(pd.DataFrame(value))}
    return None


def table_from_plain(plain: dict[str, Any]) -> Any:
    """Make the table of `table_to_plain` again: a DataFrame, an array or a SparseTable."""
    if plain["form"] == "sparse":
        rows, columns = plain["shape"]
        return SparseTable((int(rows), int(columns)), *(np.asarray(plain[name]) for name in SparseTable._fields[1:]))
    if "block" in plain:
        cells = pd.DataFrame(np.asarray(plain["block"]))
    else:
        cells = pd.DataFrame(dict(enumerate(map(column_from_plain, plain["columns"]))), index=range(plain["rows"]))
    if plain["form"] == "matrix":
        return cells.to_numpy()
    cells.index, cells.columns = index_from_plain(plain["index"], len(cells)), pd.Index(plain["names"])
    return cells


def cells_to_plain(table: pd.DataFrame) -> dict[str, Any]:
    """Convert the cells of a table: one array where all columns have one plain type, else an array for each."""
    kinds = set(table.dtypes)
    if len(kinds) == 1 and is_plain(next(iter(kinds))):
        return {"block": table.to_numpy(), "exact": True}
    columns = [column_to_plain(table.iloc[:, place]) for place in range(len(table.columns))]
    return {"columns": columns, "rows": len(table), "exact": all(one["exact"] for one in columns)}


def column_to_plain(column: Any) -> dict[str, Any]:
    """Convert a column: an array, codes of categories, or texts with None for gaps."""
    dtype = column.dtype
    if is_plain(dtype):
        return {"plain": column.to_numpy(), "exact": True}
    if isinstance(dtype, pd.CategoricalDtype):
        kinds = column_to_plain(pd.Series(dtype.categories))
        codes = column.cat.codes.to_numpy()
        return {"codes": codes, "kinds": kinds, "ordered": bool(dtype.ordered), "exact": kinds["exact"]}
    gaps = column.isna().to_numpy()
    values = [None if gap else value for value, gap in zip(column.tolist(), gaps, strict=True)]
    if is_date(dtype) or pd.api.types.is_complex_dtype(dtype):
        # pandas makes numbers of them, scikit-learn does not. `repr`, as the text of a year would be a number again.
        return {"texts": [None if value is None else repr(value) for value in values], "of": "object", "exact": False}
    if all(value is None or isinstance(value, str) for value in values) and not gaps.all():
        return {"texts": values, "of": "object" if pd.api.types.is_object_dtype(dtype) else "str", "exact": True}
    try:
        return {"plain": column.to_numpy(dtype=float, na_value=np.nan), "exact": True}
    except (TypeError, ValueError):
        return {"texts": [None if value is None else str(value) for value in values], "of": "object", "exact": False}


def is_date(dtype: Any) -> bool:
    """Whether a column holds points in time, differences between them, or periods."""
    kinds = (pd.api.types.is_datetime64_any_dtype, pd.api.types.is_timedelta64_dtype)
    return isinstance(dtype, pd.PeriodDtype) or any(is_kind(dtype) for is_kind in kinds)


def column_from_plain(plain: dict[str, Any]) -> Any:
    """Make the column of `column_to_plain` again."""
    if "codes" in plain:
        kinds = pd.Index(column_from_plain(plain["kinds"]))
        return pd.Series(pd.Categorical.from_codes(plain["codes"], kinds, ordered=bool(plain["ordered"])))
    if "texts" in plain:
        if not all(value is None or isinstance(value, str) for value in plain["texts"]):
            raise ValueError("it holds no texts")
        return pd.Series(plain["texts"], dtype={"object": object, "str": "str"}[plain["of"]])
    return pd.Series(np.asarray(plain["plain"]).reshape(-1))


def index_to_plain(index: Any) -> dict[str, Any]:
    """Convert an index: its numbers where it has some that differ from the rows' own, and its name."""
    name = None if index.nlevels > 1 or index.name is None else str(index.name)
    if isinstance(index, pd.RangeIndex) and (index.start, index.step) == (0, 1):
        return {"name": name, "kind": "rows"}
    if index.nlevels == 1 and pd.api.types.is_integer_dtype(index) and not index.hasnans:
        return {"name": name, "kind": "numbers", "places": index.to_numpy(dtype=np.int64)}
    return {"name": name, "kind": "other"}


def index_from_plain(plain: dict[str, Any], rows: int) -> Any:
    """Make the index of `index_to_plain` again; one of other things than numbers as fractions, which name no row."""
    if plain["kind"] == "numbers":
        return pd.Index(np.asarray(plain["places"]), name=plain["name"])
    return (
        pd.RangeIndex(rows, name=plain["name"])
        if plain["kind"] == "rows"
        else pd.Index(np.arange(rows) + 0.5, name=plain["name"])
    )


def name_to_plain(name: Any) -> Any:
    """Convert the name of a column."""
    if isinstance(name, np.generic):
        name = name.item()
    return name if isinstance(name, str | int | float | bool) else str(name)


def values_to_plain(values: Any) -> dict[str, Any]:
    """Convert an array of any shape: numbers as they are, all else as texts."""
    array = np.asarray(values)
    if is_plain(array.dtype) and array.dtype.kind in "biuf":
        return {"plain": array}
    return {"words": [str(one) for one in array.ravel().tolist()], "shape": array.shape}


def values_from_plain(plain: dict[str, Any]) -> Any:
    """Make the array of `values_to_plain` again."""
    if "plain" in plain:
        return np.asarray(plain["plain"])
    return np.array([str(one) for one in plain["words"]], dtype=object).reshape(plain["shape"])
