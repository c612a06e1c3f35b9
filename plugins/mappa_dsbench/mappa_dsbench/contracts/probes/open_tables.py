"""Opens files that hold tables: what was opened apart is made a table again."""

from collections.abc import Callable, Mapping
from typing import Any

from mappa_dsbench.contracts.probes.opener import known_type, open_apart, type_name
from mappa_dsbench.contracts.probes.plain_values import table_from_plain, table_to_plain
from mappa_dsbench.contracts.probes.report import Report
from mappa_dsbench.contracts.probes.targets import to_columns


def open_features(value: Any) -> dict[str, Any]:
    """Convert opened features to plain values: a table, or the name of their type."""
    return {"table": table_to_plain(value), "type": type_name(value)}


def open_target(value: Any) -> dict[str, Any]:
    """Convert an opened target to plain values: its columns as a table, or the name of its type."""
    columns = to_columns(value)
    return {"table": None if columns is None else table_to_plain(columns), "type": type_name(value)}


def open_tables(
    report: Report, jobs: Mapping[str, Callable[[Any], Any]], *, checked: bool = True, exact: bool = False
) -> dict[str, Any]:
    """Open the tables of `jobs`. Where they are being `checked`, a file without one has a fault; with `exact`, a table
    that a model would see otherwise than it is in the file is left out."""
    tables = {}
    for path, value in open_apart(report, jobs, checked=checked).items():
        report.begin_file(path)
        if value["table"] is None:
            if checked:
                report.add_fault("not_a_table", path, f"it holds a {known_type(value['type'])}")
        elif value["table"]["exact"] or not exact:
            tables[path] = table_from_plain(value["table"])
    return tables
