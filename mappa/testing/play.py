"""Run one trajectory of a workflow with scripted replies."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa.rollout.collector import RolloutCollector
from mappa.rollout.named_coach import NamedCoach
from mappa.rollout.replay import Replay
from mappa.rollout.team import Job, Team
from mappa.testing.fakes import FixedCoach, MemoryRecorder, ReplyScript, ScriptedSampler
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.protocols import AnswerGrader, Coach, Tool, Workflow
from mappa_core.records import Sampling, Scene, Task, ToolLimits, Trajectory


async def play(
    workflow: Workflow,
    task: Task,
    replies: Sequence[str] | ReplyScript,
    *,
    tools: Mapping[str, Tool] | None = None,
    grader: AnswerGrader | None = None,
    coach: Coach | None = None,
    hindsight: Coach | None = None,
    spend_usd: float | None = None,
    reference_for: Sequence[str] = (),
    retries: int = 0,
    recorded: Replay | None = None,
    recorder: MemoryRecorder | None = None,
    archive: Path | None = None,
) -> Trajectory:
    """Run `task` once with the agents' `replies`: in order, or a function of prompt and sampling. `grader` is the
    source of the task, if it grades answers itself. `coach` judges every action, `hindsight` all of them once the
    outcome is known, for at most `spend_usd`; coaches of the agents in `reference_for` are shown the truth. `retries`
    are those of an action's calls after a ToolError. The steps in `recorded` are replayed first; if it restores files,
    from the `archive` of the first run. A lack of replies is an IndexError on the trajectory."""
    sampler = ScriptedSampler(replies if callable(replies) else _in_order(replies))
    offered = dict(tools or {})
    team = Team(
        workflow=workflow,
        grader=grader,
        policy_of=dict.fromkeys(workflow.agents, "scripted"),
        samplers={"scripted": sampler},
        sampling={agent: Sampling() for agent in workflow.agents},
        tools=offered,
        limits={name: ToolLimits() for name in offered},
        retries=dict.fromkeys(offered, retries),
        retry_after_s=0.0,
        coach_of={} if coach is None else {agent: NamedCoach(name="test", coach=coach) for agent in workflow.agents},
        hindsight=None if hindsight is None else NamedCoach(name="hindsight", coach=hindsight),
        ledger=Ledger(spend_usd),
        reference_for=frozenset(reference_for),
    )
    with tempfile.TemporaryDirectory(prefix="mappa-test-") as temporary:
        files = archive or Path(temporary)
        for judging in filter(None, (coach, hindsight)):
            judging.set_bench(team.bench(files))
        recorder = recorder or MemoryRecorder()
        collector = RolloutCollector(team, recorder=recorder, archive=files, concurrency=1, waves=False, graded=False)
        job = Job(task=task, split="train", iteration=0, sample=0)
        (trajectory,) = await collector.collect([job], {} if recorded is None else {job.id: recorded})
    return trajectory


def scenes_of(
    workflow: Workflow,
    task: Task,
    replies: Sequence[str] | ReplyScript,
    *,
    tools: Mapping[str, Tool] | None = None,
    reference_for: Sequence[str] = (),
) -> tuple[Scene, ...]:
    """Run `task` once and return the scene of every action as a coach sees it, in order; not to be called in a
    coroutine. Raises AssertionError that says why if the trajectory does not finish."""
    coach = FixedCoach(5.0)
    trajectory = asyncio.run(play(workflow, task, replies, tools=tools, coach=coach, reference_for=reference_for))
    assert trajectory.error is None, f"the workflow did not finish: {trajectory.error}"
    return tuple(coach.scenes)


def _in_order(replies: Sequence[str]) -> ReplyScript:
    left = iter(replies)

    def script(prompt: str, sampling: Sampling) -> str:
        try:
            return next(left)
        except StopIteration:
            raise IndexError(f"the workflow asked for more than the {len(replies)} scripted replies") from None

    return script
