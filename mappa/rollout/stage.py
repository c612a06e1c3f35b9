"""Live implementation of Stage: one trajectory of a workflow while it runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from random import Random

import numpy as np

from mappa.rollout.replay import ActionRequest, Replay, check_same_request, check_same_sample
from mappa.rollout.scenes import live_scene
from mappa.rollout.team import Job, Recorder, Team
from mappa.rollout.tool_call_runner import ToolCallRunner
from mappa.rollout.verdict_collector import VerdictCollector
from mappa.rollout.wave_scheduler import WaveScheduler
from mappa_core.errors import ConfigError, PromptTooLong, ToolError, WorkflowError
from mappa_core.protocols import Bench
from mappa_core.records import (
    Completion,
    Failure,
    Message,
    Role,
    Sampling,
    Step,
    Task,
    ToolCall,
    ToolSpec,
    Trajectory,
    Verdict,
)
from mappa_core.tools.handoff_contracts import find_breaches
from mappa_core.tools.parse_calls import parse_calls


class LiveStage:
    """Implements protocols.Stage. Recorded steps are replayed in order and recorded verdicts are reused; the stage goes
    live where the record ends. Verdicts are requested in tasks of `background`, which cancels them if the run fails;
    `tool_calls` runs the tool calls; the workflow inspects files on `bench`."""

    def __init__(
        self,
        team: Team,
        job: Job,
        *,
        recorder: Recorder,
        scheduler: WaveScheduler,
        background: asyncio.TaskGroup,
        tool_calls: ToolCallRunner,
        bench: Bench,
        recorded: Replay | None = None,
        resample: bool = False,
    ) -> None:
        self._team = team
        self._job = job
        self._recorder = recorder
        self._scheduler = scheduler
        self._tool_calls = tool_calls
        self._bench = bench
        self._recorded = recorded or Replay()
        self._resample = resample
        self._task = replace(job.task, reference=None)
        self._random = Random(team.seed_of(job.origin, "stage"))
        self._steps: dict[int, Step] = {}
        self._next_position = 0
        self._turns: Counter[str] = Counter()
        self._verdicts = VerdictCollector(
            team, recorder=recorder, background=background, recorded=self._recorded, bench=bench
        )
        self._quoted: dict[str, int] = {}
        self.outcome: dict[str, float] = {}

    @property
    def task(self) -> Task:
        return self._task

    @property
    def random(self) -> Random:
        return self._random

    @property
    def files(self) -> tuple[str, ...]:
        return self._tool_calls.files

    def record(self, **outcome: float) -> None:
        for name, value in outcome.items():
            if not hasattr(value, "__float__"):
                raise TypeError(f"the workflow records {name}={value!r}, which is no number (is an await missing?)")
            if not isfinite(value):
                raise ValueError(
                    f"the workflow records {name}={value}, and only finite numbers can be recorded: leave out what is "
                    "not known"
                )
            if name == self._team.workflow.metric and not 0.0 <= value <= 1.0:
                raise ValueError(
                    f"the workflow records {name}={value}: its metric is a share from 0 to 1, as results are given in "
                    "per cent; record other numbers under another name"
                )
            self.outcome[name] = float(value)

    async def grade(self, text: str) -> float:
        workflow, grader, task = self._team.workflow, self._team.grader, self._job.task
        if grader is None:
            return float(await workflow.grade(text, task))
        answer = workflow.find_answer(text)
        return 0.0 if answer is None else float(await grader.grade_answer(answer, task))

    async def grade_file(self, path: str) -> Mapping[str, float]:
        return await self._team.workflow.grade_file(self._tool_calls.content(path), self._job.task)

    async def verdict(self, step: Step) -> Verdict:
        if step.agent in self._team.unjudged:
            raise ConfigError(
                f"the workflow asks for the verdict of {step.agent} while it plays, and counterfactual rollouts are "
                "not judged: set credit.counterfactual.use=none, or turn the feedback off"
            )
        verdict = await self._verdicts.live_verdict(step)
        if verdict is None:
            return Verdict.abstained("")
        return _without_text(verdict) if step.agent in self._team.reference_for else verdict

    async def act(
        self,
        agent: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[str] = (),
        own_tools: Sequence[ToolSpec] = (),
        stop: Sequence[str] = (),
        turns_left: int = 0,
    ) -> Step:
        request = ActionRequest(
            agent=agent,
            messages=tuple(messages),
            tools=self._team.expand_toolboxes(tools),
            own_tools=tuple(own_tools),
            stop=tuple(stop),
        )
        role = self._check_request(request)
        # Taken before the first await: two actions at once have the positions in which they were requested.
        position, turn = self._next_position, self._turns[agent]
        self._next_position = position + 1
        self._turns[agent] = turn + 1
        recorded = self._recorded.step(position)
        if recorded is not None:
            step = await self._replay_step(recorded, request)
        else:
            if self._recorded.lost is not None and self._recorded.ended_before(position):
                # The action at which it was lost was sampled in a wave, too.
                await self._resample_step(request, position)
                raise ToolError(self._recorded.lost.message)
            step = await self._sample_step(role, request, position, turn, turns_left)
            # Recorded before the coach is asked, as a verdict refers to a recorded step.
            self._recorder.record_step(self._job.id, step)
        self._steps[position] = step
        task = self._job.task if agent in self._team.reference_for else self._task
        self._verdicts.start(live_scene(step, self._before(position), task, self._team.workflow.agents))
        return step

    def count_tokens(self, agent: str, messages: Sequence[Message], own_tools: Sequence[ToolSpec] = ()) -> int | None:
        policy = self._team.policy_of[agent]
        request = ActionRequest(agent=agent, messages=tuple(messages), tools=(), own_tools=tuple(own_tools))
        prompt = self._team.render(policy, request, request.messages)
        # A policy behind an API is given messages, and its provider's tokens are not known here.
        return len(prompt) if isinstance(prompt, np.ndarray) else None

    def _before(self, position: int) -> tuple[Step, ...]:
        return tuple(self._steps[place] for place in sorted(self._steps) if place < position)

    def _check_request(self, request: ActionRequest) -> Role:
        roles = self._team.workflow.agents
        agent = request.agent
        if agent not in roles:
            raise WorkflowError(f"the workflow lets {agent!r} act, but declares only {', '.join(sorted(roles))}")
        for tool in request.tools:
            if tool not in self._team.tools:
                configured = ", ".join(sorted({*self._team.tools, *self._team.toolboxes})) or "none"
                raise WorkflowError(f"{agent} is offered the tool {tool!r}, but the run has: {configured}")
        for spec in request.own_tools:
            if spec.name in request.tools:
                raise WorkflowError(
                    f"{agent} is offered {spec.name!r} as a tool of the run and as one of the workflow, so that nobody "
                    "could tell who answers a call: rename one of them"
                )
        return roles[agent]

    async def _replay_step(self, recorded: Step, request: ActionRequest) -> Step:
        check_same_request(recorded, request)
        again = await self._resample_step(request, recorded.position)
        if again is not None:
            check_same_sample(recorded, again)
        self._tool_calls.add_recorded(recorded)
        return recorded

    async def _resample_step(self, request: ActionRequest, position: int) -> Completion | None:
        """Sample a recorded action again, so that its wave has the same composition and gives the same numbers."""
        again = self._resample and self._recorded.is_sampled(position)
        return await self._sample(request, position) if again else None

    async def _sample(self, request: ActionRequest, position: int) -> Completion:
        policy = self._team.policy_of[request.agent]
        sampler = self._team.samplers[policy]
        prompt = self._team.render(policy, request, request.messages)
        seed = self._team.seed_of(self._job.seed_name(position), position)
        sampling = replace(self._team.sampling[request.agent], seed=seed, stop=request.stop)
        with self._team.ledger.enforce_cap():
            try:
                completion = await self._scheduler.sample(self._job.id, sampler, prompt, sampling)
            except PromptTooLong:
                self._quoted = self._quoted_in(request.messages, self._before(position))
                raise
        # A policy behind an API has no tokens, and an evaluation learns nothing.
        if completion.tokens is not None and self._job.split == "train":
            _check_sampling(sampling, completion)
        return completion

    @staticmethod
    def _quoted_in(messages: Sequence[Message], steps: Sequence[Step]) -> dict[str, int]:
        """Characters of what each of `steps` wrote, and its calls printed, that stand word for word in `messages`."""
        text = "\n".join(message.content for message in messages)
        quoted = {}
        for step in steps:
            # An agent's own reply is sent back whole, with calls and think text; others see its content.
            own = len(step.completion.text) if step.reply in messages else _quoted_length(step.reply.content, text)
            printed = [part for result in step.results for part in (result.stdout, result.stderr)]
            characters = own + sum(_quoted_length(part, text) for part in printed)
            if characters:
                quoted[step.id] = characters
        return quoted

    async def _sample_step(self, role: Role, request: ActionRequest, position: int, turn: int, turns_left: int) -> Step:
        before = self.files
        completion = self._recorded.replacement_at(position) or await self._sample(request, position)
        policy = self._team.policy_of[request.agent]
        reply = self._team.samplers[policy].reply(completion)
        answered_by_run = replace(reply, tool_calls=_calls_of_run_tools(reply.tool_calls, request))
        calls = parse_calls(answered_by_run, request.tools)
        results = await self._tool_calls.run(calls)
        after = self.files if calls else before
        step = Step(
            id=f"{self._job.id}/{position:03d}",
            agent=request.agent,
            turn=turn,
            position=position,
            policy=policy,
            messages=request.messages,
            reply=reply,
            completion=completion,
            tools=request.tools,
            own_tools=request.own_tools,
            stop=request.stop,
            files=before,
            calls=calls,
            results=results,
            prompt=self._team.prompt_version(request.agent),
        )
        return await self._inspect(step, role, after, last=not turns_left)

    async def _inspect(self, step: Step, role: Role, after: Sequence[str], *, last: bool) -> Step:
        """Add to `step` the inspection of its files, the breaches of its contract, and its strata."""
        workflow = self._team.workflow
        # `self._task`, without the truth: what an inspection says may be shown to agents.
        scene = live_scene(step, self._before(step.position), self._task, workflow.agents)
        inspection = await workflow.inspect(scene, self._bench, last=last)
        is_over = last or (inspection is not None and inspection.over)
        # Outputs are due when the agent's turns end; until then only inputs can be missing.
        breaches = find_breaches(step.agent, role, step.files, after if is_over else None)
        if inspection is not None:
            breaches = (*breaches, *inspection.breaches)
        step = replace(step, inspection=inspection, breaches=breaches)
        strata = {"task": self._task.stratum, **workflow.strata(replace(scene, step=step))}
        return replace(step, strata=strata)

    async def finish(self, error: Failure | None, seconds: float) -> Trajectory:
        """Remove the workspace, wait for the verdicts and close the trajectory."""
        await self._tool_calls.close()
        job = self._job
        if error is not None and error.kind == PromptTooLong.__name__:
            error = replace(error, quoted=self._quoted)
        trajectory = Trajectory(
            id=job.id,
            task=job.task,
            sample=job.sample,
            iteration=job.iteration,
            # By position: actions that are requested at once may end in another order.
            steps=tuple(self._steps[position] for position in sorted(self._steps)),
            outcome=dict(self.outcome),
            error=self._recorded.lost or error,
            seconds=seconds,
        )
        trajectory = replace(trajectory, verdicts=await self._verdicts.finish(trajectory))
        self._recorder.end_trajectory(trajectory)
        return trajectory


def _check_sampling(sampling: Sampling, completion: Completion) -> None:
    # Learners have to renormalise over the tokens that a cut left. At temperature 0 a cut changes nothing.
    is_cut = (sampling.top_p < 1.0 or sampling.top_k > 0) and sampling.temperature > 0.0
    if is_cut and completion.mask_sizes is None:
        raise ConfigError(
            "sampling.top_p below 1 or sampling.top_k above 0: this engine does not say which tokens they left, and "
            "without that learning is biased; set sampling.top_p=1 sampling.top_k=0"
        )


def _calls_of_run_tools(calls: Sequence[ToolCall], request: ActionRequest) -> tuple[ToolCall, ...]:
    """Native calls that the run answers. Calls of the workflow's own tools, or all if it brings all, are its own."""
    own = {spec.name for spec in request.own_tools}
    # A workflow that brings all tools also answers calls of names that nobody offered.
    if own and not request.tools:
        return ()
    return tuple(call for call in calls if call.name not in own)


def _quoted_length(part: str, text: str) -> int:
    part = part.strip()
    return len(part) if part and part in text else 0


def _without_text(verdict: Verdict) -> Verdict:
    """Strip all text from the verdict of a coach that was shown the truth: it could reveal the truth to the agents."""
    return replace(verdict, reasoning="", correction=None, error=None, members=(), raw_reply=None)
