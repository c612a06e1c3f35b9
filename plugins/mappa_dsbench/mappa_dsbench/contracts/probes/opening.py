"""How a stranger's pickle is opened: as data and as objects of installed libraries, and as nothing else.

The cage is what holds. This is so that a file cannot pass for another one: what is opened could run code in the
process that tells what was found.
"""

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

FOUND = "found.json"
BEGUN = "begun"
LONGEST = 200
"""Characters of a detail."""

HARMLESS = {
    "builtins": "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple type",
    "collections": "Counter OrderedDict defaultdict deque",
    "copyreg": "__newobj__ __newobj_ex__ _reconstructor",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "functools": "partial",
    "re": "_compile",
    "_codecs": "encode",
}
"""What of the standard library a file may hold."""
CALLED = ("mean", "median", "py_buffer", "scalar", "type_for_alias")
"""Functions without an underscore that files of numpy, pandas and pyarrow refer to."""


class Refused(Exception):
    """A file holds something else than data and objects of installed libraries."""


class OtherForm(Exception):
    """A file was written by joblib, whose arrays stand between the opcodes."""


def checked(module: str, name: str, found: Any) -> Any:
    """What a file refers to, if it may. Functions of libraries may not: they can be called while the file is opened."""
    home = getattr(found, "__module__", None) or module
    for place in (module, home):
        root = place.partition(".")[0]
        if root in sys.stdlib_module_names and name not in HARMLESS.get(place, "").split():
            raise Refused(f"it holds more than data: {place}.{name}")
    if isinstance(found, type) or type(found).__name__ == "ufunc" or name.startswith("_") or name in CALLED:
        return found
    if module.startswith(("sklearn.", "scipy.")) and ".datasets" not in module and ".io" not in module:
        return found
    if module in HARMLESS:
        return found
    raise Refused(f"it holds more than data: {module}.{name}")


def allowed(module: str, name: str) -> None:
    """See that something may be looked up at all."""
    if module == "__main__":
        raise Refused(f"it holds {name} of the program that wrote it, which no other program has")
    if "." in name:
        raise Refused(f"it holds more than data: {module}.{name}")


class Pickles(pickle.Unpickler):
    """Opens files of pickle and pandas."""

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "joblib.numpy_pickle":
            raise OtherForm
        allowed(module, name)
        return checked(module, name, super().find_class(module, name))


def opened(path: str) -> Any:
    """What a file of pickle, pandas or joblib holds."""
    try:
        with Path(path).open("rb") as file:
            return Pickles(file).load()
    except (OtherForm, pickle.UnpicklingError):
        return opened_by_joblib(path)


def opened_by_joblib(path: str) -> Any:
    """What a file of joblib holds. Its reader is told to look things up as ours does."""
    from joblib import numpy_pickle

    reader = numpy_pickle.NumpyUnpickler
    lookup = reader.find_class

    def find_class(self: Any, module: str, name: str) -> Any:
        allowed(module, name)
        return checked(module, name, lookup(self, module, name))

    reader.find_class = find_class
    return numpy_pickle.load(path)


class Report:
    """What is found, told in a file. While something is opened or tried, the file says what: should the process end
    there, it is known at what."""

    def __init__(self) -> None:
        self.faults: list[dict[str, str]] = []
        sys.stdout.write(f"{BEGUN}\n")
        sys.stdout.flush()

    def at(self, path: str) -> None:
        """Say at which file the work is."""
        self._write({"at": path})

    def fault(self, code: str, path: str, detail: str) -> None:
        """Note a fault."""
        self.faults.append({"code": code, "path": path, "detail": " ".join(detail.split())[:LONGEST]})

    def opened(self, path: str) -> Any:
        """What a file holds, None where it cannot be opened, which is a fault."""
        self.at(path)
        try:
            return opened(path)
        except Exception as error:  # noqa: BLE001 - a file can fail in any way
            self.fault("unreadable", path, said(error))
            return None

    def close(self, **facts: Any) -> None:
        """Tell everything."""
        self._write({"faults": self.faults, **facts})

    def _write(self, found: dict[str, Any]) -> None:
        Path(FOUND).write_text(json.dumps(found, allow_nan=False))


def said(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"[:LONGEST] if not isinstance(error, Refused) else str(error)[:LONGEST]


def kind_of(value: object) -> str:
    """What something is, for people."""
    return types.NoneType.__name__ if value is None else type(value).__name__
