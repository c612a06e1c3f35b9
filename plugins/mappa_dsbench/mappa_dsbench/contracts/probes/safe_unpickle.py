"""Opens untrusted pickles: only names of a closed list are allowed (`allowed_names`).

The sandbox is the actual protection. This check prevents forged reports: a file could otherwise run code in the process
that writes the report.
"""

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

from mappa_dsbench.contracts.probes.allowed_names import ALLOWED_NAMES

REPORT_FILE = "found.json"
STARTED_LINE = "begun"
MAX_DETAIL_LENGTH = 200
"""Limit in characters."""


class RefusedContent(Exception):
    """A file refers to a name that is not on the closed list."""


class JoblibFormat(Exception):
    """A file was written by joblib, which stores arrays between the opcodes."""


def check_name(module: str, name: str) -> None:
    """Raise RefusedContent for a name that is not on the closed list, before its module is imported."""
    if module == "__main__":
        raise RefusedContent(f"it holds {name} of the program that wrote it, which no other program has")
    if name not in ALLOWED_NAMES.get(module, ()):
        raise RefusedContent(f"it holds more than data: {module}.{name}")


class SafeUnpickler(pickle.Unpickler):
    """Unpickler for files of pickle and pandas that checks every reference."""

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "joblib.numpy_pickle":
            raise JoblibFormat
        check_name(module, name)
        return super().find_class(module, name)


def open_pickle(path: str) -> Any:
    """Load a file of pickle, pandas or joblib."""
    try:
        with Path(path).open("rb") as file:
            return SafeUnpickler(file).load()
    except (JoblibFormat, pickle.UnpicklingError):
        return open_with_joblib(path)


def open_with_joblib(path: str) -> Any:
    """Load a file of joblib, with the same checks patched into its unpickler."""
    from joblib import numpy_pickle

    reader = numpy_pickle.NumpyUnpickler
    lookup = reader.find_class

    def find_class(self: Any, module: str, name: str) -> Any:
        if (module, name) != ("joblib.numpy_pickle", "NumpyArrayWrapper"):
            check_name(module, name)
        return lookup(self, module, name)

    def refuse_old_format(filename: str) -> Any:
        raise RefusedContent("it has a format of joblib before 0.10, whose reader checks nothing")

    reader.find_class = find_class
    numpy_pickle.load_compatibility = refuse_old_format
    return numpy_pickle.load(path)


class Report:
    """Writes the findings to a file. While a file is opened or tried, the report names it, so that the cause is known
    if the process ends there."""

    def __init__(self) -> None:
        self.faults: list[dict[str, str]] = []
        sys.stdout.write(f"{STARTED_LINE}\n")
        sys.stdout.flush()

    def begin_file(self, path: str) -> None:
        """Report that work on a file begins."""
        self._write({"at": path})

    def add_fault(self, code: str, path: str, detail: str) -> None:
        """Record a fault."""
        self.faults.append({"code": code, "path": path, "detail": " ".join(detail.split())[:MAX_DETAIL_LENGTH]})

    def open(self, path: str) -> Any:
        """Load a file; None and a fault where it cannot be opened."""
        self.begin_file(path)
        try:
            return open_pickle(path)
        except Exception as error:  # noqa: BLE001 - a file can fail in any way
            self.add_fault("unreadable", path, error_line(error))
            return None

    def close(self, **facts: Any) -> None:
        """Write the final report."""
        self._write({"faults": self.faults, **facts})

    def _write(self, content: dict[str, Any]) -> None:
        Path(REPORT_FILE).write_text(json.dumps(content, allow_nan=False))


def error_line(error: BaseException) -> str:
    """Format an error in one line."""
    return (
        f"{type(error).__name__}: {error}"[:MAX_DETAIL_LENGTH]
        if not isinstance(error, RefusedContent)
        else str(error)[:MAX_DETAIL_LENGTH]
    )


def type_name(value: object) -> str:
    """Return the name of a value's type."""
    return types.NoneType.__name__ if value is None else type(value).__name__
