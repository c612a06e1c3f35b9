"""Runs programs of demonstrations on real tables, in one process of their own, and looks into what they leave."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random

import pandas as pd

from mappa_dsbench.embedded.catalogue import EmbeddedTask
from mappa_dsbench.embedded.facts import load_facts
from mappa_dsbench.grading.grade import Grade, grade_submission
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.grading.truth import Truth, read_truth
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, ROLES, SUBMISSION
from mappa_dsbench.tiny.planted_faults import draw_sound_program
from mappa_dsbench.tiny.programs import Program
from mappa_dsbench.tiny.synthetic_tables import SyntheticTask

PROBES = {DATA_ENGINEER: "features", MODELER: "model"}
RUNNER = """
import contextlib, importlib, io, json, os, sys, warnings
warnings.simplefilter("ignore")
told = []
for folder, code, probe, order in json.load(sys.stdin):
    os.chdir(folder)
    found = {"result": "ok"}
    try:
        exec(compile(code, "main.py", "exec"), {})
    except Exception as error:
        found = {"result": type(error).__name__}
    if probe:
        sys.argv[1:] = [json.dumps(order)]
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(f"mappa_dsbench.contracts.probes.{probe}").main()
        found |= json.load(open("found.json"))
    told.append(found)
print(json.dumps(told))
"""


class Table:
    """An embedded task, cut, as a demonstration knows tasks. `gaps`: a column of numbers has some."""

    def __init__(self, embedded: EmbeddedTask) -> None:
        cut = embedded.make_files()
        table = load_facts()[embedded.name].table
        self.files = {"train.csv": cut.train, "test.csv": cut.test, "sample_submission.csv": cut.sample}
        self.truth: Truth = read_truth(cut.answer, cut.problem)
        self.anchors = table.anchors
        train = pd.read_csv(BytesIO(cut.train))
        first = train[cut.problem.targets[0]]
        self.drawn = SyntheticTask(
            table,
            text_ids=not pd.api.types.is_numeric_dtype(train[cut.problem.id_column]),
            text_targets=not pd.api.types.is_numeric_dtype(first),
            whole=bool(pd.api.types.is_numeric_dtype(first) and (first % 1 == 0).all()),
        )
        self.gaps = bool(train.select_dtypes("number").isna().any().any())


@dataclass(frozen=True)
class Ran:
    """What a program came to. `codes` are the faults that the contract finds, soft ones included."""

    folder: Path
    result: str
    files: frozenset[str]
    codes: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    agent: str
    program: Program
    table: Table
    after: Path | None = None
    """The folder of the program before."""


def run(jobs: list[Job], root: Path) -> list[Ran]:
    """Run programs, each in a folder of its own."""
    ordered = []
    for number, job in enumerate(jobs):
        folder = root / str(number)
        if job.after is None:
            folder.mkdir(parents=True)
            for name, data in job.table.files.items():
                (folder / name).write_bytes(data)
        else:
            shutil.copytree(job.after, folder)
            (folder / "found.json").unlink(missing_ok=True)
        problem = job.table.drawn.problem
        code = job.program.text(problem).removeprefix("```python\n").partition("```")[0]
        probe = PROBES.get(job.agent)
        order = {
            "id_column": problem.id_column,
            "prediction": METRICS[problem.metric].prediction,
            "targets": list(problem.targets) if probe == "features" else len(problem.targets),
            "most": 10_000,
        }
        ordered.append((str(folder), code, probe, order))
    done = subprocess.run(
        [sys.executable, "-c", RUNNER], input=json.dumps(ordered), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [
        _ran(job, Path(folder), found)
        for job, (folder, *_), found in zip(jobs, ordered, json.loads(done.stdout), strict=True)
    ]


def _ran(job: Job, folder: Path, found: dict) -> Ran:
    files = frozenset(path.name for path in folder.iterdir())
    there = [path for path in ROLES[job.agent].produces if path in files]
    codes = [f"{one['path']} {one['code']}" for one in found.get("faults", ()) if one["path"] in there]
    if job.agent == ANALYST and SUBMISSION in files and (reason := graded(job.table, folder).reason):
        codes.append(f"{SUBMISSION} {reason}")
    return Ran(folder, found["result"], files, tuple(codes))


def graded(table: Table, folder: Path) -> Grade:
    return grade_submission(table.truth, table.anchors, folder / SUBMISSION)


def played(tables: list[Table], rng: Random, root: Path) -> dict[str, list[Ran]]:
    """A faultless team on every table: what each agent came to, in the order of the tables."""
    found: dict[str, list[Ran]] = {}
    before: list[Path | None] = [None] * len(tables)
    for agent in ROLES:
        jobs = [
            Job(agent, draw_sound_program(agent, table.drawn, rng), table, after)
            for table, after in zip(tables, before, strict=True)
        ]
        found[agent] = run(jobs, root / agent)
        before = [ran.folder for ran in found[agent]]
    return found
