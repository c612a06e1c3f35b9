"""Play one trajectory of a workflow with scripted replies."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa_core.calls.spend import Ledger
from mappa_core.protocols import Coach, Tool, Workflow
from mappa_core.records import Sampling, Scene, Task, ToolLimits, Trajectory
from mappa_core.rollout.collector import Collector
from mappa_core.rollout.replay import Replay
from mappa_core.rollout.team import Job, Judge, Team
from mappa_core.testing.fakes import FixedCoach, MemoryRecorder, Script, ScriptedSampler


async def play(
    workflow: Workflow,
    task: Task,
    replies: Sequence[str] | Script,
    *,
    tools: Mapping[str, Tool] | None = None,
    coach: Coach | None = None,
    hindsight: Coach | None = None,
    spend_usd: float | None = None,
    reference_for: Sequence[str] = (),
    retries: int = 0,
    recorded: Replay | None = None,
    recorder: MemoryRecorder | None = None,
    archive: Path | None = None,
) -> Trajectory:
    """Play `task` once.

    Args:
        replies: what the agents say, in order, or a function of prompt and sampling.
        tools: by name, as the workflow offers them.
        coach: judges every action; None: nobody does.
        hindsight: judges all actions again when the outcome is known.
        spend_usd: what coaches may cost; None: no cap.
        reference_for: agents whose coach is shown the truth.
        retries: how often the calls of an action are made again, at once, where a tool's machinery failed.
        recorded: steps to be replayed first.
        archive: where the files of workspaces are kept; a replay that restores files needs that of the first play.

    Raises:
        IndexError: recorded on the trajectory, where the workflow asks for more actions than there are replies.
    """
    sampler = ScriptedSampler(replies if callable(replies) else _in_order(replies))
    offered = dict(tools or {})
    team = Team(
        workflow=workflow,
        policy_of=dict.fromkeys(workflow.agents, "scripted"),
        samplers={"scripted": sampler},
        sampling={agent: Sampling() for agent in workflow.agents},
        tools=offered,
        limits={name: ToolLimits() for name in offered},
        retries=dict.fromkeys(offered, retries),
        retry_after_s=0.0,
        judges={} if coach is None else {agent: Judge(name="test", coach=coach) for agent in workflow.agents},
        hindsight=None if hindsight is None else Judge(name="hindsight", coach=hindsight),
        ledger=Ledger(spend_usd),
        reference_for=frozenset(reference_for),
    )
    with tempfile.TemporaryDirectory(prefix="mappa-test-") as temporary:
        files = archive or Path(temporary)
        for judging in filter(None, (coach, hindsight)):
            judging.equip(team.bench(files))
        collector = Collector(team, recorder=recorder or MemoryRecorder(), archive=files, concurrency=1, waves=False)
        job = Job(task=task, split="train", iteration=0, sample=0)
        (trajectory,) = await collector.collect([job], {} if recorded is None else {job.id: recorded})
    return trajectory


def scenes_of(
    workflow: Workflow,
    task: Task,
    replies: Sequence[str] | Script,
    *,
    tools: Mapping[str, Tool] | None = None,
    reference_for: Sequence[str] = (),
) -> tuple[Scene, ...]:
    """What a coach is shown of every action when `task` is played once with these replies, in order. Takes an event
    loop of its own, so call it outside of coroutines.

    Raises:
        AssertionError: the trajectory could not be finished; it says why.
    """
    coach = FixedCoach(5.0)
    trajectory = asyncio.run(play(workflow, task, replies, tools=tools, coach=coach, reference_for=reference_for))
    assert trajectory.error is None, f"the workflow did not finish: {trajectory.error}"
    return tuple(coach.scenes)


def _in_order(replies: Sequence[str]) -> Script:
    left = iter(replies)

    def script(prompt: str, sampling: Sampling) -> str:
        try:
            return next(left)
        except StopIteration:
            raise IndexError(f"the workflow asked for more than the {len(replies)} scripted replies") from None

    return script
