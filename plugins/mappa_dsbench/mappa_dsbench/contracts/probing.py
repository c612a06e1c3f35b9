"""Lets the probes look into what agents left, and reads what they tell as data from a stranger: a file that does harm
when it is opened may have written it."""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import marshal
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from mappa_core import Bench, Ran, ToolError
from mappa_dsbench.contracts.faults import FAULTS, UNREADABLE, fault

PROBES = Path(__file__).parent / "probes"
FOUND, BEGUN = "found.json", "begun"
MOST_BYTES = 16 << 20
MOST_VALUES = 200_000
"""Predictions that are told; of a table with more, none are."""
MOST_REMEMBERED = 2_000_000
"""Facts that are remembered, counted by their predictions."""

_Line = Annotated[str, msgspec.Meta(max_length=200, pattern=r"\A[^\x00-\x1f\x7f]*\Z")]
_Name = Annotated[str, msgspec.Meta(max_length=80)]
_Cell = str | float | int | bool


class _Told(msgspec.Struct, forbid_unknown_fields=True):
    code: str
    path: _Name
    detail: _Line


class _Features(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[_Told]
    columns: Annotated[list[_Name], msgspec.Meta(max_length=500)]
    rows_train: int | None
    rows_test: int | None
    target: Literal["same", "recoded", "other", "unknown"]


class _Predictions(msgspec.Struct, forbid_unknown_fields=True):
    how: Literal["predict", "predict_proba", "decision_function"]
    values: list[list[_Cell]] | None


class _Model(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[_Told]
    model: Annotated[str, msgspec.Meta(max_length=80, pattern=r"\A\w+\Z")]
    predictions: _Predictions | None


class _Ended(msgspec.Struct, forbid_unknown_fields=True):
    at: _Name


Probe = Literal["features", "model"]
_FORMS: Mapping[Probe, Any] = {"features": _Features, "model": _Model}


@cache
def program(probe: Probe) -> str:
    """The program that is run: the probe, compiled already for an interpreter like this one, and as text for others. To
    compile it takes as long as to look into a small table."""
    text = source(probe)
    code = marshal.dumps(compile(text, f"<{probe}>", "exec"))
    return (
        "import importlib.util, marshal\n"
        f"if importlib.util.MAGIC_NUMBER == {importlib.util.MAGIC_NUMBER!r}:\n    exec(marshal.loads({code!r}))\n"
        f"else:\n    exec({text!r})\n"
    )


def source(probe: Probe) -> str:
    """The probe as one text, after what it takes from its folder."""
    texts: dict[str, list[ast.stmt]] = {}
    _gather(probe, texts)
    return ast.unparse(ast.Module(body=[line for lines in texts.values() for line in lines], type_ignores=[]))


def _gather(name: str, texts: dict[str, list[ast.stmt]]) -> None:
    """Put a module of the folder into `texts`, after those that it imports."""
    lines = ast.parse((PROBES / f"{name}.py").read_text(encoding="utf-8")).body
    own = [
        line for line in lines if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("mappa_dsbench.")
    ]
    for line in own:
        needed = str(line.module).rpartition(".")[2]
        if needed not in texts:
            _gather(needed, texts)
    texts[name] = [line for line in lines if line not in own]


async def probed(
    probe: Probe, task: Mapping[str, Any], paths: Sequence[str], inputs: Mapping[str, Path], bench: Bench
) -> dict[str, Any]:
    """What `probe` finds in the files `paths`, which stand among `inputs`: its `faults`, and its facts as JSON values.
    Where it was ended at one of them, that one cannot be read, and there are no facts. The same files are opened once.

    Raises:
        ToolError: the probe could not begin, or the machinery failed.
        ConfigError: the run has no tool that runs programs.
    """
    order = json.dumps({**task, "most": MOST_VALUES}, sort_keys=True)
    key = (probe, order, *((path, *_stamp(file)) for path, file in sorted(inputs.items())))
    found = _MEMORY.get(key)
    if found is None:
        found = _told(probe, await bench.run(program(probe), inputs=inputs, arguments=[order]), paths)
        _MEMORY.put(key, found)
    return copy.copy(found)


def _stamp(file: Path) -> tuple[str, int, int, int]:
    status = file.stat()
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns


def _told(probe: Probe, ran: Ran, paths: Sequence[str]) -> dict[str, Any]:
    if not ran.result.stdout.startswith(f"{BEGUN}\n"):
        lines = ran.result.stderr.strip().splitlines() or [ran.result.status]
        raise ToolError(f"the program that looks into files did not begin: {lines[-1]}")
    found = _read(_FORMS[probe], ran, paths)
    if found is not None:
        faults = [fault(one.code, one.path, one.detail) for one in found.faults]
        return {**msgspec.to_builtins(found), "faults": faults}
    ended = _read(_Ended, ran, paths)
    path = ended.at if ended is not None and ended.at in paths else paths[0]
    return {"faults": [fault(UNREADABLE, path, _ending(ran))]}


class _Memory:
    """What was found in which files, the newest of it."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, dict[str, Any]] = OrderedDict()
        self._size = 0

    def get(self, key: Any) -> dict[str, Any] | None:
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
        return found

    def put(self, key: Any, found: dict[str, Any]) -> None:
        self._size += _weight(found) - (_weight(self._found.pop(key)) if key in self._found else 0)
        self._found[key] = found
        while self._size > MOST_REMEMBERED:
            self._size -= _weight(self._found.popitem(last=False)[1])


_MEMORY = _Memory()


def _weight(found: Mapping[str, Any]) -> int:
    values = (found.get("predictions") or {}).get("values") or [[]]
    return 100 + len(values) * len(values[0])


def _read(form: Any, ran: Ran, paths: Sequence[str]) -> Any:
    """What the probe told in one of its forms; None where it did not, or told what it cannot have found."""
    file = ran.files.get(FOUND)
    if file is None or file.stat().st_size > MOST_BYTES:
        return None
    try:
        found = msgspec.json.decode(file.read_bytes(), type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    faults = getattr(found, "faults", ())
    return found if all(one.code in FAULTS and one.path in paths for one in faults) else None


def _ending(ran: Ran) -> str:
    """How a probe ended that should not have."""
    lines = ran.result.stderr.strip().splitlines()
    last = "".join(character for character in (lines[-1] if lines else "") if character.isprintable())[:150]
    return f"the program that opened it ended with {ran.result.status}: {last}"
