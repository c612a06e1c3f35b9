"""CPU time per action of all that is not the model: stage, collector and store, against `verifiers`.

The episode is that of MathChat: a solver (1 action), a coder (2, each calls a tool) and a verifier (1) with full
context. Model, tool and coach answer at once with fixed text, whose tokens are its bytes, so what is left is what a
framework does itself. 64 episodes are played at once, ours in waves as the `tiny` recipe does.

Ours: every action has its own verdict, and every step and verdict is committed to SQLite on disk as it happens, with
tokens, log-probabilities and the lineage of a workspace. Theirs, see `peers/verifiers_episode.py`: every agent's run
has one reward, and every episode is appended to `traces.jsonl` when it ends.

Each side is one long-lived process; they take turns. Measured is user and system time with threads and children, after
a round to warm up; what that left in memory is then frozen on both sides, so that garbage collection does not count
what a process has imported. The ratio is ours by theirs, median over the rounds with a 95 % bootstrap interval.

    make bench, or, once that made .venv-bench: python bench/rollout.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measure import cpu_seconds, parse_arguments, print_result
from numpy.typing import NDArray

from mappa.rollout.collector import RolloutCollector
from mappa.rollout.named_coach import NamedCoach
from mappa.rollout.team import Job, Team
from mappa.store.writer import Store
from mappa.testing import FixedCoach, ScriptedSampler
from mappa_core.protocols import Stage, Workflow, Workspace
from mappa_core.records import Message, Role, Sampling, Task, ToolLimits, ToolResult, ToolSpec

HERE = Path(__file__).resolve().parent
PEER_PYTHON = HERE.parent / ".venv-bench" / "bin" / "python"
PEER = HERE / "peers" / "verifiers_episode.py"
EPISODES, ACTIONS = 64, 4

PLAN = """1. Count the pencils in the full boxes: boxes times pencils in a box.
2. Add the loose pencils.
3. Take away those that were given to the other classes.
4. Share what is left among the tables; the remainder stays in the cupboard."""
CODE = """boxes, per_box, loose, given, tables = 12, 24, 17, 65, 8
left = boxes * per_box + loose - given
print(left, left // tables, left % tables)"""
OUTPUT = "240 30 0"
TASK = "You are one of three agents who solve a problem together. The problem:\n\n{problem}\n\n"
SAID = f"The problem solver said:\n\n{PLAN}\n\n"
RAN = f"The code executor ran:\n\n{CODE}\n\nwhich printed:\n\n{OUTPUT}\n\n" * 2
EPISODE: Mapping[str, Any] = {
    "solver": {
        "prompt": f"{TASK}Plan the solution in numbered steps. Do not compute and do not write code.",
        "turns": [{"text": PLAN, "code": None}],
    },
    "coder": {
        "prompt": f"{TASK}{SAID}Turn the plan into one Python program that prints what the plan asks for.",
        "turns": [
            {"text": "The plan becomes this program:", "code": CODE},
            {"text": "To be sure, the same again:", "code": CODE},
        ],
    },
    "verifier": {
        "prompt": f"{TASK}{SAID}{RAN}Check plan and output against the problem and give the answer in \\boxed{{{{}}}}.",
        "turns": [{"text": "The plan is right and the program follows it: \\boxed{30}", "code": None}],
    },
}


class Chain(Workflow):
    """Plays `EPISODE`."""

    agents: Mapping[str, Role] = {name: Role(brief=f"Is the {name}.") for name in EPISODE}

    async def run(self, stage: Stage) -> None:
        for agent, part in EPISODE.items():
            messages = [Message(role="user", content=part["prompt"].format(problem=stage.task.prompt))]
            for turn in part["turns"]:
                step = await stage.act(agent, messages, tools=("python",) if turn["code"] else ())
                printed = "\n".join(result.stdout for result in step.results)
                messages += [step.reply, Message(role="user", content=printed)]
        stage.record(correct=1.0)


class InstantPython:
    """Looks for changed files as every tool does, and prints `OUTPUT`."""

    spec = ToolSpec(
        name="python",
        description="Runs a program and returns what it printed.",
        schema={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    )

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        return ToolResult(tool="python", status="ok", exit_code=0, stdout=OUTPUT, files=workspace.changes())

    async def close(self) -> None:
        pass


def sampler(agent: str) -> ScriptedSampler:
    """Says the next turn of `agent`: in the prompt are the marks of its turns so far and of the one to come."""
    replies = [_reply(turn) for turn in EPISODE[agent]["turns"]]
    return ScriptedSampler(lambda prompt, sampling: replies[prompt.count("<assistant>") - 1])


def _reply(turn: Mapping[str, str | None]) -> str:
    return f"{turn['text']}\n\n```python\n{turn['code']}\n```" if turn["code"] else str(turn["text"])


def team() -> Team:
    judge = NamedCoach(name="fixed", coach=FixedCoach(7.0))
    return Team(
        workflow=Chain(),
        policy_of={agent: agent for agent in EPISODE},
        samplers={agent: sampler(agent) for agent in EPISODE},
        sampling=dict.fromkeys(EPISODE, Sampling()),
        tools={"python": InstantPython()},
        limits={"python": ToolLimits()},
        retries={"python": 0},
        coach_of=dict.fromkeys(EPISODE, judge),
    )


async def play(problems: list[str], store: Store, archive: Path, iteration: int) -> None:
    """One iteration of training's collection."""
    tasks = [Task(id=str(number), prompt=problem, reference="30") for number, problem in enumerate(problems)]
    jobs = [Job(task=task, split="train", iteration=iteration, sample=0) for task in tasks]
    collector = RolloutCollector(team(), recorder=store, archive=archive, concurrency=EPISODES, waves=True)
    trajectories = await collector.collect(jobs)
    scored = [verdict for trajectory in trajectories for verdict in trajectory.verdicts if verdict.status == "scored"]
    assert len(scored) == EPISODES * ACTIONS, [trajectory.error for trajectory in trajectories]


def start_peer(folder: Path, problems: list[str]) -> subprocess.Popen[str]:
    """The other side: a process that plays a round for every line it is sent and answers with its CPU seconds."""
    # Its workspaces lie below the home directory, which is put beside ours.
    environment = os.environ | {"HOME": str(folder), "PYTHONPATH": str(HERE)}
    pipe = subprocess.PIPE
    process = subprocess.Popen([PEER_PYTHON, PEER], stdin=pipe, stdout=pipe, text=True, env=environment)
    _send(process, json.dumps({"folder": str(folder), "problems": problems, "output": OUTPUT, "agents": EPISODE}))
    return process


def peer_round(process: subprocess.Popen[str]) -> float:
    assert process.stdout is not None
    _send(process, "play")
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"{PEER} ended with exit code {process.wait()}; its message is above")
    return float(answer)


def _send(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def measure(rounds: int) -> NDArray[np.float64]:
    """CPU seconds per action of ours and theirs, (rounds, 2)."""
    problems = [f"Class {n} has 12 boxes of 24 pencils and 17 loose ones, gives 65 away …" for n in range(EPISODES)]
    taken = []
    with tempfile.TemporaryDirectory(prefix="mappa-bench-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        Store.create(folder / "run.db")
        store = Store(folder / "run.db")
        runner.run(play(problems, store, folder / "archive", iteration=0))
        gc.collect()
        gc.freeze()
        with start_peer(folder, problems) as process:
            for iteration in range(1, rounds + 1):
                start = cpu_seconds()
                runner.run(play(problems, store, folder / "archive", iteration))
                taken.append((cpu_seconds() - start, peer_round(process)))
        store.close()
    return np.array(taken) / (EPISODES * ACTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parse_arguments(parser, rounds=1).rounds
    if not PEER_PYTHON.exists():
        print(
            f"there is no {PEER_PYTHON}: run `make bench`, which installs what this is measured against",
            file=sys.stderr,
        )
        raise SystemExit(2)
    taken = measure(rounds)
    ours, theirs = np.median(taken, axis=0) * 1e6
    print(f"ours {ours:.0f} µs, verifiers {theirs:.0f} µs of CPU per action")
    print_result(
        "rollout",
        taken[:, 0] / taken[:, 1],
        unit="CPU time per action, ours by theirs",
        against="verifiers 0.4.0, in-process harness, client and tool",
    )


if __name__ == "__main__":
    main()
