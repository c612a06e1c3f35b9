"""Opens untrusted pickles: only names of a closed list are allowed (`allowed_names`).

The sandbox keeps a file in, and the process that opens it can tell nothing but data (`opener`); the list keeps a file
from becoming a program at all.
"""

import pickle
from pathlib import Path
from typing import Any

from mappa_dsbench.contracts.probes.allowed_names import ALLOWED_NAMES


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
