"""Runs the probes on agents' files, and parses their reports.

A probe opens files in a process apart (`probes.opener`); the one that writes the report has opened none of them. A
report counts only with the digest that this process prints, and is parsed as untrusted data nevertheless.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib.util
import json
import marshal
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from mappa_core import Bench, ToolError
from mappa_core.sandbox import ProgramRun
from mappa_dsbench.contracts.faults import FAULT_IS_HARD, UNREADABLE, build_fault

PROBES_FOLDER = Path(__file__).parent / "probes"
_REPORT_FILE, _STARTED_LINE, _AT_LINE, _REPORT_LINE = "found.json", "begun", "at", "report"
MAX_REPORT_BYTES = 16 << 20
MAX_VALUES = 200_000
"""Limit on reported predictions; of a table with more, none are reported."""
MAX_CACHED_VALUES = 2_000_000
"""Limit of the cache, counted in predictions."""

_Line = Annotated[str, msgspec.Meta(max_length=200, pattern=r"\A[^\x00-\x1f\x7f]*\Z")]
_Name = Annotated[str, msgspec.Meta(max_length=80)]
_Cell = str | float | int | bool


class _ReportedFault(msgspec.Struct, forbid_unknown_fields=True):
    code: str
    path: _Name
    detail: _Line


class _Features(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[_ReportedFault]
    columns: Annotated[list[_Name], msgspec.Meta(max_length=500)]
    rows_train: int | None
    rows_test: int | None
    target: Literal["same", "recoded", "other", "unknown"]


class _Predictions(msgspec.Struct, forbid_unknown_fields=True):
    how: Literal["predict", "predict_proba", "decision_function"]
    values: list[list[_Cell]] | None


class _Model(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[_ReportedFault]
    model: Annotated[str, msgspec.Meta(max_length=80, pattern=r"\A\w+\Z")]
    predictions: _Predictions | None


Probe = Literal["features", "model"]
_REPORT_TYPES: Mapping[Probe, Any] = {"features": _Features, "model": _Model}
_UNKNOWN_MODEL: dict[str, Any] = {"faults": [], "model": "unknown", "predictions": None}
"""The facts of a model that could not be tried because of another agent's file."""


@cache
def build_program(probe: Probe) -> str:
    """Build the program that is run: the probe, precompiled for an interpreter like this one, and as text for others.
    Compiling takes as long as probing a small table."""
    text = build_source(probe)
    code = marshal.dumps(compile(text, f"<{probe}>", "exec"))
    return (
        "import importlib.util, marshal\n"
        f"if importlib.util.MAGIC_NUMBER == {importlib.util.MAGIC_NUMBER!r}:\n    exec(marshal.loads({code!r}))\n"
        f"else:\n    exec({text!r})\n"
    )


def build_source(probe: Probe) -> str:
    """Return the source of a probe, preceded by the modules of its folder that it imports."""
    texts: dict[str, list[ast.stmt]] = {}
    _collect_modules(probe, texts)
    return ast.unparse(ast.Module(body=[line for lines in texts.values() for line in lines], type_ignores=[]))


def _collect_modules(name: str, texts: dict[str, list[ast.stmt]]) -> None:
    """Add a module of the folder to `texts`, after the modules that it imports."""
    lines = ast.parse((PROBES_FOLDER / f"{name}.py").read_text(encoding="utf-8")).body
    own = [
        line for line in lines if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("mappa_dsbench.")
    ]
    for line in own:
        needed = str(line.module).rpartition(".")[2]
        if needed not in texts:
            _collect_modules(needed, texts)
    texts[name] = [line for line in lines if line not in own]


async def run_probe(
    probe: Probe, task: Mapping[str, Any], paths: Sequence[str], inputs: Mapping[str, Path], bench: Bench
) -> dict[str, Any]:
    """Run a probe on the files `paths`, which are among `inputs`; return its `faults`, and its facts as JSON values.
    Where the probe was ended at one of them, that file counts as unreadable, and there are no facts. Results are cached
    by the files' stamps.

    Raises:
        ToolError: the probe could not start, or the machinery failed.
        ConfigError: the run has no tool that runs programs.
    """
    order = json.dumps({**task, "most": MAX_VALUES}, sort_keys=True)
    key = (probe, order, *((path, *_file_stamp(file)) for path, file in sorted(inputs.items())))
    report = _CACHE.get(key)
    if report is None:
        report = _interpret(probe, await bench.run(build_program(probe), inputs=inputs, arguments=[order]), paths)
        _CACHE.put(key, report)
    return copy.copy(report)


def _file_stamp(file: Path) -> tuple[str, int, int, int]:
    status = file.stat()
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns


def _interpret(probe: Probe, ran: ProgramRun, paths: Sequence[str]) -> dict[str, Any]:
    said = ran.result.stdout.splitlines()
    if said[:1] != [_STARTED_LINE]:
        lines = ran.result.stderr.strip().splitlines() or [ran.result.status]
        raise ToolError(f"the program that looks into files did not begin: {lines[-1]}")
    report = _decode_report(_REPORT_TYPES[probe], ran, said[-1], paths)
    if report is not None:
        faults = [build_fault(one.code, one.path, one.detail) for one in report.faults]
        return {**msgspec.to_builtins(report), "faults": faults}
    at = [line.removeprefix(f"{_AT_LINE} ") for line in said if line.startswith(f"{_AT_LINE} ")]
    if at and at[-1] not in paths:
        return copy.deepcopy(_UNKNOWN_MODEL)
    return {"faults": [build_fault(UNREADABLE, at[-1] if at else paths[0], _describe_ending(ran))]}


class _FactsCache:
    """Caches the facts of files, the most recently used ones."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, dict[str, Any]] = OrderedDict()
        self._size = 0

    def get(self, key: Any) -> dict[str, Any] | None:
        report = self._found.get(key)
        if report is not None:
            self._found.move_to_end(key)
        return report

    def put(self, key: Any, report: dict[str, Any]) -> None:
        self._size += _count_values(report) - (_count_values(self._found.pop(key)) if key in self._found else 0)
        self._found[key] = report
        while self._size > MAX_CACHED_VALUES:
            self._size -= _count_values(self._found.popitem(last=False)[1])


_CACHE = _FactsCache()


def _count_values(report: Mapping[str, Any]) -> int:
    values = (report.get("predictions") or {}).get("values") or [[]]
    return 100 + len(values) * len(values[0])


def _decode_report(form: Any, ran: ProgramRun, last_line: str, paths: Sequence[str]) -> Any:
    """Decode the probe's report as `form`; None where it is missing, malformed, impossible or not the one whose digest
    the probe said in its last line."""
    file = ran.files.get(_REPORT_FILE)
    if file is None or file.stat().st_size > MAX_REPORT_BYTES:
        return None
    content = file.read_bytes()
    if last_line != f"{_REPORT_LINE} {hashlib.sha256(content).hexdigest()}":
        return None
    try:
        report = msgspec.json.decode(content, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return report if all(one.code in FAULT_IS_HARD and one.path in paths for one in report.faults) else None


def _describe_ending(ran: ProgramRun) -> str:
    """Describe how a probe ended early."""
    lines = ran.result.stderr.strip().splitlines()
    last = "".join(character for character in (lines[-1] if lines else "") if character.isprintable())[:150]
    return f"the program that opened it ended with {ran.result.status}: {last}"
