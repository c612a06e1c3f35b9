"""One trajectory under way: what a workflow holds while it runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from mappa_core.errors import ConfigError, ToolError, WorkflowError
from mappa_core.protocols import Bench
from mappa_core.records import (
    Completion,
    Failure,
    Message,
    Role,
    Step,
    Task,
    ToolCall,
    ToolSpec,
    Trajectory,
    Verdict,
)
from mappa_core.rollout.answering import Answering
from mappa_core.rollout.judging import Judging
from mappa_core.rollout.replay import Asked, Replay, check_same_request, check_same_sample
from mappa_core.rollout.scenes import scene
from mappa_core.rollout.team import Job, Recorder, Team
from mappa_core.rollout.turnstile import Turnstile
from mappa_core.tools.calls import calls_of
from mappa_core.tools.contracts import breaches


class LiveStage:
    """Implements protocols.Stage. Where `recorded` holds steps, they are returned in order, and verdicts that were
    given are not asked for again; the stage goes live where the record ends. Verdicts are asked for in tasks of
    `background`, which ends them where the run fails; `answering` makes the calls; what was left is looked into on
    `bench`."""

    def __init__(
        self,
        team: Team,
        job: Job,
        *,
        recorder: Recorder,
        turnstile: Turnstile,
        background: asyncio.TaskGroup,
        answering: Answering,
        bench: Bench,
        recorded: Replay | None = None,
        resample: bool = False,
    ) -> None:
        self._team = team
        self._job = job
        self._recorder = recorder
        self._turnstile = turnstile
        self._answering = answering
        self._bench = bench
        self._recorded = recorded or Replay()
        self._resample = resample
        self._task = replace(job.task, reference=None)
        self._random = Random(team.seed_of(job.origin, "stage"))
        self._steps: dict[int, Step] = {}
        self._begun = 0
        self._turns: Counter[str] = Counter()
        self._judging = Judging(team, recorder=recorder, background=background, recorded=self._recorded, bench=bench)
        self._outcome: dict[str, float] = {}

    @property
    def task(self) -> Task:
        return self._task

    @property
    def random(self) -> Random:
        return self._random

    @property
    def files(self) -> tuple[str, ...]:
        return self._answering.files

    def record(self, **outcome: float) -> None:
        self._outcome.update({name: float(value) for name, value in outcome.items()})

    async def grade(self, text: str) -> float:
        return float(await self._team.workflow.grade(text, self._job.task))

    async def grade_file(self, path: str) -> Mapping[str, float]:
        return await self._team.workflow.grade_file(self._answering.content(path), self._job.task)

    async def verdict(self, step: Step) -> Verdict:
        if step.agent in self._team.unheard:
            raise ConfigError(
                f"the workflow asks for the verdict of {step.agent} while it plays, and counterfactual rollouts are "
                "not judged: set credit.counterfactual.use=none, or turn the feedback off"
            )
        verdict = await self._judging.live(step)
        if verdict is None:
            return Verdict.abstained("")
        return _without_words(verdict) if step.agent in self._team.reference_for else verdict

    async def act(
        self,
        agent: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[str] = (),
        own_tools: Sequence[ToolSpec] = (),
        turns_left: int = 0,
    ) -> Step:
        asked = Asked(
            agent=agent, messages=tuple(messages), tools=self._team.offered(tools), own_tools=tuple(own_tools)
        )
        role = self._role(asked)
        position, turn = self._begun, self._turns[agent]
        self._begun, self._turns[agent] = position + 1, turn + 1
        recorded = self._recorded.step(position)
        if recorded is None and self._recorded.lost is not None and self._recorded.ended_before(position):
            await self._resampled(asked, position)
            raise ToolError(self._recorded.lost.message)
        if recorded is not None:
            step = await self._again(recorded, asked)
        else:
            step = await self._live(role, asked, position, turn, turns_left)
            self._recorder.step(self._job.id, step)
        self._steps[position] = step
        task = self._job.task if agent in self._team.reference_for else self._task
        self._judging.start(scene(step, self._before(position), task, self._team.workflow.agents))
        return step

    def _before(self, position: int) -> tuple[Step, ...]:
        return tuple(self._steps[place] for place in sorted(self._steps) if place < position)

    def _role(self, asked: Asked) -> Role:
        roles = self._team.workflow.agents
        if asked.agent not in roles:
            raise WorkflowError(f"the workflow lets {asked.agent!r} act, but declares only {', '.join(sorted(roles))}")
        for tool in asked.tools:
            if tool not in self._team.tools:
                configured = ", ".join(sorted({*self._team.tools, *self._team.boxes})) or "none"
                raise WorkflowError(f"{asked.agent} is offered the tool {tool!r}, but the run has: {configured}")
        for spec in asked.own_tools:
            if spec.name in asked.tools:
                raise WorkflowError(f"{asked.agent} is offered {spec.name!r} as a tool of the run and of the workflow")
        return roles[asked.agent]

    async def _again(self, recorded: Step, asked: Asked) -> Step:
        check_same_request(recorded, asked)
        again = await self._resampled(asked, recorded.position)
        if again is not None:
            check_same_sample(recorded, again)
        self._answering.recall(recorded)
        return recorded

    async def _resampled(self, asked: Asked, position: int) -> Completion | None:
        """A recorded action is sampled again so that its wave has the same composition, hence the same numbers."""
        again = self._resample and self._recorded.sampled(position)
        return await self._sample(asked, position) if again else None

    async def _sample(self, asked: Asked, position: int) -> Completion:
        policy = self._team.policy_of[asked.agent]
        sampler = self._team.samplers[policy]
        specs = (*(self._team.tools[name].spec for name in asked.tools), *asked.own_tools)
        prompt = sampler.render(asked.messages, specs)
        seed = self._team.seed_of(self._job.drawn_by(position), position)
        sampling = replace(self._team.sampling[asked.agent], seed=seed)
        if policy in self._team.outside:
            self._team.ledger.check()
        completion = await self._turnstile.sample(self._job.id, sampler, prompt, sampling)
        self._team.ledger.add(completion.usage)
        return completion

    async def _live(self, role: Role, asked: Asked, position: int, turn: int, turns_left: int) -> Step:
        before = self.files
        completion = self._recorded.put(position) or await self._sample(asked, position)
        policy = self._team.policy_of[asked.agent]
        reply = self._team.samplers[policy].reply(completion)
        calls = calls_of(replace(reply, tool_calls=_of_the_run(reply.tool_calls, asked)), asked.tools)
        results = await self._answering.answer(calls)
        after = self.files if calls else before
        step = Step(
            id=f"{self._job.id}/{position:03d}",
            agent=asked.agent,
            turn=turn,
            position=position,
            policy=policy,
            messages=asked.messages,
            reply=reply,
            completion=completion,
            tools=asked.tools,
            own_tools=asked.own_tools,
            files=before,
            calls=calls,
            results=results,
        )
        return await self._looked_into(step, role, after, last=not turns_left)

    async def _looked_into(self, step: Step, role: Role, after: Sequence[str], *, last: bool) -> Step:
        """`step` with what was found in the files, the breaches of its contract, and its strata."""
        workflow, earlier = self._team.workflow, self._before(step.position)
        seen = scene(step, earlier, self._task, workflow.agents)
        found = await workflow.inspect(seen, self._bench, last=last)
        due = last or (found is not None and found.over)
        broken = () if found is None else found.breaches
        step = replace(
            step,
            inspection=found,
            breaches=(*breaches(step.agent, role, step.files, after if due else None), *broken),
        )
        return replace(step, strata={"task": self._task.stratum, **workflow.strata(replace(seen, step=step))})

    async def finish(self, error: Failure | None, seconds: float) -> Trajectory:
        """Remove the workspace, wait for the verdicts and close the trajectory."""
        await self._answering.close()
        trajectory = Trajectory(
            id=self._job.id,
            task=self._job.task,
            sample=self._job.sample,
            iteration=self._job.iteration,
            steps=tuple(self._steps[position] for position in sorted(self._steps)),
            outcome=dict(self._outcome),
            error=self._recorded.lost or error,
            seconds=seconds,
        )
        trajectory = replace(trajectory, verdicts=await self._judging.finish(trajectory))
        self._recorder.end(trajectory)
        return trajectory


def _of_the_run(calls: Sequence[ToolCall], asked: Asked) -> tuple[ToolCall, ...]:
    """The native calls that are not the workflow's to answer; where it brings all tools, every call is."""
    own = {spec.name for spec in asked.own_tools}
    return () if own and not asked.tools else tuple(call for call in calls if call.name not in own)


def _without_words(verdict: Verdict) -> Verdict:
    """What a workflow, and through it an agent, may know of a verdict whose coach was shown the truth: not its words,
    which may hold it."""
    return replace(verdict, reasoning="", correction=None, error=None, members=(), raw_reply=None)
