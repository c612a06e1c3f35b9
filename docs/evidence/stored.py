"""Stored results: what made them, and the metric of every problem, from which any interval can be made anew."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from arms import write

from mappa.look.run_results import RunResult
from mappa.runs import Evaluation, RunReader, build_evaluation
from mappa.store.summary import read_summary
from mappa_core.errors import InputError
from mappa_core.records import Float64

ROOT = Path(__file__).parents[2]
SOURCES = ("mappa_core/**/*", "mappa/**/*", "plugins/mappa_*/mappa_*/**/*", "docs/evidence/*_offers.py")
"""What a run is made of: files of the packages, and the offers of this folder."""
PACKAGES = ("mappa-core", "torch", "transformers", "numpy")


def provenance() -> dict[str, Any]:
    """Commit, versions and machine. `commit` is null outside a repository, and `changed` says whether what makes a run
    differed from it."""
    commit = _git("rev-parse", "HEAD")
    state = _git("status", "--porcelain", "--", *(f":(glob){pattern}" for pattern in SOURCES))
    return {
        "commit": commit,
        "changed": None if state is None else bool(state),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
    }


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def cpu_model() -> str:
    """What the processor calls itself, with its numbers: virtual machines give processors of several kinds one name."""
    cpus = Path("/proc/cpuinfo")
    said = cpus.read_text() if cpus.is_file() else ""
    first = dict(re.findall(r"^([^:\t]+?)\s*:\s*(.+)$", said.split("\n\n")[0], re.MULTILINE))
    if "model name" not in first:
        return platform.processor() or platform.machine()
    numbers = [f"{name} {first[name]}" for name in ("cpu family", "model", "stepping") if name in first]
    return ", ".join((first["model name"], *numbers))


def source() -> str:
    """sha256 of all that a run is made of, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def write_simulation(out: Path | None, name: str, **figures: Any) -> None:
    """Write the figures of a simulation beside what made them, where a file was named."""
    write(out, {"simulation": name, **provenance(), **figures})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """A run in `folder`: `words` are the settings in which its arm differs from the others of its result."""

    arm: str
    seed: int
    words: tuple[str, ...]
    folder: Path


def write_runs(out: Path | None, name: str, runs: Sequence[TrainedRun], **figures: Any) -> None:
    """Write runs and further figures beside what made them, where a file was named."""
    if out is None:
        return
    write(
        out,
        {
            "study": name,
            **provenance(),
            "source": source(),
            "problems": problems_of(run.folder for run in runs),
            "runs": [told(run) for run in runs],
            **figures,
        },
    )


def told(run: TrainedRun) -> dict[str, Any]:
    """A run in the results."""
    summary = read_summary(run.folder)
    own = summary.eval
    assert own is not None  # a run that ended was evaluated
    return {
        "arm": run.arm,
        "seed": run.seed,
        "words": tuple(word.replace(f"{Path.cwd()}/", "") for word in run.words),
        "folder": run.folder.name,
        "before": own.before,
        "after": own.after,
        "gain": own.gain,
        "selection": own.selection,
        "evaluations": stored_evaluations(run.folder),
        "seconds": summary.seconds,
    }


def joined(stored: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Two stored parts of one study, some of its seeds or arms each, as one result. A run of both is the further one.

    Raises:
        InputError: the parts were made of different sources, or with different settings.
    """
    for name in ("study", "quick", "recipe", "settings", "source"):
        if stored[name] != further[name]:
            raise InputError(f"cannot be joined: {name} was {stored[name]!r}, and is {further[name]!r} now")
    of_runs = {
        name: [*{(row["arm"], row["seed"]): row for row in (*stored[name], *further[name])}.values()]
        for name in ("runs", "rows", "exchanged")
    }
    return further | {
        "seeds": sorted({*stored["seeds"], *further["seeds"]}),
        "seconds": stored["seconds"] + further["seconds"],
        "problems": pack(unpack(stored["problems"]) | unpack(further["problems"])),
        **of_runs,
    }


def stored_evaluations(folder: Path) -> list[dict[str, Any]]:
    """Evaluations of a run, each with all measures of every problem."""
    found = []
    for own in evaluations_of(folder):
        packed = {name: _packed(own.with_metric(name)) for name in own.measures}
        values = packed.pop(own.metric)
        about = {"iteration": own.iteration, "part": own.part, "metric": own.metric}
        found.append({**about, "values": values, "figures": packed})
    return found


def evaluations_of(folder: Path) -> Iterator[Evaluation]:
    """The evaluations of a run."""
    with RunReader(folder) as reader:
        for row in reader.evaluations:
            played = reader.outcomes(row.iteration, row.part)
            own = build_evaluation(played, metric=row.metric, figures=tuple(row.figures), iteration=row.iteration)
            yield replace(own, part=row.part)


def _packed(evaluation: Evaluation) -> str:
    """Values by problem and sample; what was lost is left out."""
    return pack(
        {
            f"{problem}/{sample}": value
            for problem, row in zip(evaluation.problems, evaluation.values.tolist(), strict=True)
            for sample, value in enumerate(row)
            if math.isfinite(value)
        }
    )


def problems_of(folders: Iterable[Path]) -> str:
    """Stratum and cluster of every held-out problem of runs, packed."""
    problems: dict[str, list[str | None]] = {}
    for own in chain.from_iterable(map(evaluations_of, folders)):
        clusters = own.clusters or (None,) * len(own.problems)
        problems |= {name: about for name, *about in zip(own.problems, own.strata, clusters, strict=True)}
    return pack(problems)


def read_results(document: Mapping[str, Any]) -> dict[str, list[RunResult]]:
    """What the runs of a stored result report, and plays of trained teams with weights `exchanged`, by arm, from the
    values of every problem alone."""
    problems = unpack(document["problems"])
    found: dict[str, list[RunResult]] = {}
    runs = [*document["runs"]]
    if "exchanged" in document:
        runs += document["exchanged"]
    for run in runs:
        last = [one for one in run["evaluations"] if one["part"] != "selection"][-1]
        evaluation = read_evaluation(last, problems)
        result = RunResult(
            name=f"{run['arm']}, seed {run['seed']}",
            seed=run["seed"],
            settings={},
            evaluation=evaluation,
            tasks=dict.fromkeys(evaluation.problems, ""),
            samples=evaluation.values.shape[1],
        )
        found.setdefault(run["arm"], []).append(result)
    return found


def read_evaluation(stored: Mapping[str, Any], problems: Mapping[str, Any]) -> Evaluation:
    """An evaluation from its stored values; `problems` are those of its result."""
    measures = {stored["metric"]: stored["values"], **stored["figures"]}
    values = {name: _by_problem(unpack(packed)) for name, packed in measures.items()}
    rows = values[stored["metric"]]
    names, samples = tuple(sorted(rows)), 1 + max(sample for row in rows.values() for sample in row)
    clusters = [problems[name][1] for name in names]
    return Evaluation(
        iteration=stored["iteration"],
        metric=stored["metric"],
        problems=names,
        strata=tuple(problems[name][0] for name in names),
        values=_array(rows, names, samples),
        failures={},
        figures={name: _array(values[name], names, samples) for name in stored["figures"]},
        clusters=None if None in clusters else tuple(clusters),
        part=stored["part"],
    )


def _by_problem(values: Mapping[str, float]) -> dict[str, dict[int, float]]:
    rows: dict[str, dict[int, float]] = {}
    for name, value in values.items():
        problem, _, sample = name.rpartition("/")
        rows.setdefault(problem, {})[int(sample)] = value
    return rows


def _array(rows: Mapping[str, Mapping[int, float]], names: Sequence[str], samples: int) -> Float64:
    values = np.full((len(names), samples), np.nan)
    for place, name in enumerate(names):
        for sample, value in rows.get(name, {}).items():
            values[place, sample] = value
    return values


def pack(values: Mapping[str, Any]) -> str:
    """Compress JSON values by name to text."""
    return base64.b64encode(zlib.compress(json.dumps(values, sort_keys=True).encode(), 9)).decode()


def unpack(packed: str) -> dict[str, Any]:
    """Read what `pack` wrote."""
    values: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return values
