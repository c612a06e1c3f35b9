"""One trajectory under way: what a workflow holds while it runs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from mappa_core.errors import WorkflowError
from mappa_core.records import (
    Completion,
    Failure,
    Message,
    Role,
    Scene,
    Step,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Verdict,
)
from mappa_core.rollout.replay import Replay, check_same_request, check_same_sample
from mappa_core.rollout.team import Job, Judge, Recorder, Team
from mappa_core.rollout.turnstile import Turnstile
from mappa_core.tools.calls import calls_of
from mappa_core.tools.contracts import breaches
from mappa_core.tools.run import run_call
from mappa_core.tools.workspace import FolderWorkspace


class LiveStage:
    """Implements protocols.Stage. Where `recorded` holds steps, they are returned in order, and verdicts that were
    given are not asked for again; the stage goes live where the record ends. Verdicts are asked for in tasks of
    `background`, which ends them where the run fails."""

    def __init__(
        self,
        team: Team,
        job: Job,
        *,
        recorder: Recorder,
        turnstile: Turnstile,
        background: asyncio.TaskGroup,
        folder: Path,
        archive: Path,
        recorded: Replay | None = None,
        resample: bool = False,
    ) -> None:
        self._team = team
        self._job = job
        self._recorder = recorder
        self._turnstile = turnstile
        self._background = background
        self._folder = folder
        self._archive = archive
        self._recorded = recorded or Replay()
        self._resample = resample
        self._task = replace(job.task, reference=None)
        self._random = Random(team.seed_of(job.id, "stage"))
        self._workspace: FolderWorkspace | None = None
        self._steps: dict[int, Step] = {}
        self._begun = 0
        self._turns: Counter[str] = Counter()
        self._judging: dict[str, asyncio.Task[Verdict]] = {}
        self._outcome: dict[str, float] = {}

    @property
    def task(self) -> Task:
        return self._task

    @property
    def random(self) -> Random:
        return self._random

    @property
    def files(self) -> tuple[str, ...]:
        return () if self._workspace is None else self._workspace.files

    def record(self, **outcome: float) -> None:
        self._outcome.update({name: float(value) for name, value in outcome.items()})

    async def grade(self, text: str) -> float:
        return float(await self._team.workflow.grade(text, self._job.task))

    async def verdict(self, step: Step) -> Verdict:
        if step.id not in self._judging:
            return Verdict.abstained("")
        verdict = await asyncio.shield(self._judging[step.id])
        return _without_words(verdict) if step.agent in self._team.reference_for else verdict

    async def act(
        self,
        agent: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[str] = (),
        turns_left: int = 0,
    ) -> Step:
        role = self._role(agent, tools)
        position, turn = self._begun, self._turns[agent]
        self._begun, self._turns[agent] = position + 1, turn + 1
        recorded = self._recorded.step(position)
        if recorded is not None:
            step = await self._again(recorded, agent, messages, tools)
        else:
            step = await self._live(role, agent, position, turn, tuple(messages), tuple(tools), turns_left)
            self._recorder.step(self._job.id, step)
        self._steps[position] = step
        self._start_judging(role, step)
        return step

    def _role(self, agent: str, tools: Sequence[str]) -> Role:
        roles = self._team.workflow.agents
        if agent not in roles:
            raise WorkflowError(f"the workflow lets {agent!r} act, but declares only {', '.join(sorted(roles))}")
        for tool in tools:
            if tool not in self._team.tools:
                configured = ", ".join(sorted(self._team.tools)) or "none"
                raise WorkflowError(f"{agent} is offered the tool {tool!r}, but the run has: {configured}")
        return roles[agent]

    async def _again(self, recorded: Step, agent: str, messages: Sequence[Message], tools: Sequence[str]) -> Step:
        check_same_request(recorded, agent, messages, tools)
        if self._resample:
            # The recorded step is sampled again so that its wave has the same composition, hence the same numbers.
            check_same_sample(recorded, await self._sample(agent, recorded.position, messages, tools))
        changes = [change for result in recorded.results for change in result.files]
        if changes:
            self._open_workspace().restore(changes)
        return recorded

    async def _sample(self, agent: str, position: int, messages: Sequence[Message], tools: Sequence[str]) -> Completion:
        sampler = self._team.samplers[self._team.policy_of[agent]]
        prompt = sampler.render(messages, tuple(self._team.tools[name].spec for name in tools))
        sampling = replace(self._team.sampling[agent], seed=self._team.seed_of(self._job.id, position))
        return await self._turnstile.sample(self._job.id, sampler, prompt, sampling)

    async def _live(
        self,
        role: Role,
        agent: str,
        position: int,
        turn: int,
        messages: tuple[Message, ...],
        tools: tuple[str, ...],
        turns_left: int,
    ) -> Step:
        before = self.files
        completion = await self._sample(agent, position, messages, tools)
        policy = self._team.policy_of[agent]
        reply = self._team.samplers[policy].reply(completion)
        calls = calls_of(reply, tools)
        results = await self._run(calls)
        after = self.files if calls else before
        step = Step(
            id=f"{self._job.id}/{position:03d}",
            agent=agent,
            turn=turn,
            position=position,
            policy=policy,
            messages=messages,
            reply=reply,
            completion=completion,
            tools=tools,
            files=before,
            calls=calls,
            results=results,
            breaches=breaches(agent, role, before, None if turns_left else after),
        )
        strata = self._team.workflow.strata(self._scene(role, step, shown=self._task))
        return replace(step, strata={"task": self._task.stratum, **strata})

    async def _run(self, calls: tuple[ToolCall, ...]) -> tuple[ToolResult, ...]:
        results = []
        for call in calls:
            results.append(await run_call(call, self._team.tools, self._open_workspace(), self._team.limits))
        return tuple(results)

    def _open_workspace(self) -> FolderWorkspace:
        if self._workspace is None:
            self._workspace = FolderWorkspace(self._folder, self._archive)
        return self._workspace

    def _scene(self, role: Role, step: Step, *, shown: Task) -> Scene:
        earlier = tuple(self._steps[position] for position in sorted(self._steps) if position < step.position)
        return Scene(task=shown, role=role, step=step, earlier=earlier)

    def _start_judging(self, role: Role, step: Step) -> None:
        if step.agent not in self._team.judges:
            return
        shown = self._job.task if step.agent in self._team.reference_for else self._task
        scene = self._scene(role, step, shown=shown)
        self._judging[step.id] = self._background.create_task(self._judge(self._team.judges[step.agent], scene))

    async def _judge(self, judge: Judge, scene: Scene) -> Verdict:
        given = self._recorded.live_verdicts(scene.step)
        if given and given[-1].status != "failed":
            return given[-1]
        verdict, seconds = await judged(judge, scene, self._team.coach_timeout_s)
        identity = f"{scene.step.id}/{judge.name}/live/{len(given)}"
        verdict = replace(verdict, id=identity, step=scene.step.id, coach=judge.name, phase="live", seconds=seconds)
        self._recorder.verdict(verdict)
        return verdict

    async def finish(self, error: Failure | None, seconds: float) -> Trajectory:
        """Wait for the verdicts and close the trajectory."""
        verdicts = await asyncio.gather(*self._judging.values())
        trajectory = Trajectory(
            id=self._job.id,
            task=self._job.task,
            sample=self._job.sample,
            iteration=self._job.iteration,
            steps=tuple(self._steps[position] for position in sorted(self._steps)),
            verdicts=tuple(verdicts),
            outcome=dict(self._outcome),
            error=error,
            seconds=seconds,
        )
        self._recorder.end(trajectory)
        return trajectory


def _without_words(verdict: Verdict) -> Verdict:
    """What a workflow, and through it an agent, may know of a verdict whose coach was shown the truth: not its words,
    which may hold it."""
    return replace(verdict, reasoning="", correction=None, error=None, members=(), raw_reply=None)


async def judged(judge: Judge, scene: Scene, timeout_s: float) -> tuple[Verdict, float]:
    """Ask a coach. This is the boundary of coaches: whatever one raises, and silence beyond `timeout_s` seconds,
    becomes a `failed` verdict, which carries no gradient and counts against `coach.max_missing`."""
    started = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            verdict = await judge.coach.score(scene)
    except TimeoutError:
        verdict = Verdict.failed(f"no verdict within {timeout_s:g} s")
    except Exception as error:  # noqa: BLE001 - the boundary of coaches
        verdict = Verdict.failed(f"{type(error).__name__}: {error}")
    return verdict, time.perf_counter() - started
