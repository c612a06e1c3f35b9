"""Contracts for workflows and coaches. Needs pytest-asyncio in auto mode."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mappa.rollout.replay import Replay
from mappa.testing.fakes import ReplyScript
from mappa.testing.play import play
from mappa_core.errors import RolloutError
from mappa_core.protocols import Coach, Tool, Workflow
from mappa_core.records import Message, Sampling, Scene, Task, Trajectory, Verdict

CANARY = "canary-7f3a91"
NONSENSE = ("", "```", "<think>", "\\boxed{", "\x00 \ud7ff")


class WorkflowContract:
    """Subclass it, set `task` and `replies` (of one trajectory, in order), and implement `workflow`, and `tools`."""

    task: Task
    replies: Sequence[str]

    def workflow(self) -> Workflow:
        """Create a workflow."""
        raise NotImplementedError

    def tools(self) -> Mapping[str, Tool]:
        """Return the tools that the workflow offers its agents."""
        return {}

    async def test_plays_to_its_end_and_records_its_metric(self) -> None:
        """Evaluation reports `metric`: call `stage.record(correct=…)`, or set `metric` to the key that you record."""
        workflow = self.workflow()
        trajectory = await play(workflow, self.task, self.replies, tools=self.tools())
        assert trajectory.error is None, f"the workflow did not finish: {trajectory.error}"
        assert workflow.metric in trajectory.outcome, f"record the outcome: stage.record({workflow.metric}=…)"

    async def test_the_truth_reaches_no_agent(self) -> None:
        """`task.reference` appears in no message to an agent. `stage.grade` takes a text and returns a number; only
        `grade`, `grade_file` and `reveal` may use the truth."""
        task = replace(self.task, reference=CANARY)
        trajectory = await play(self.workflow(), task, self.replies, tools=self.tools())
        seen = [message.content for step in trajectory.steps for message in step.messages]
        assert not any(CANARY in text for text in seen), "an agent saw task.reference: grade with stage.grade"

    async def test_only_declared_agents_act(self) -> None:
        """Every agent that acts is a key of `agents`, which describes it to the coach. Add its `Role`."""
        workflow = self.workflow()
        trajectory = await play(workflow, self.task, self.replies, tools=self.tools())
        unknown = {step.agent for step in trajectory.steps} - set(workflow.agents)
        assert not unknown, f"no role is declared for {', '.join(sorted(unknown))}: add it to `agents`"

    async def test_no_agent_acts_more_often_than_it_says(self) -> None:
        """`max_turns` bounds actions, for `mappa plan`. Raise it, or end the agent's turns earlier."""
        workflow = self.workflow()
        for replies in (self.replies, _always("nonsense")):
            trajectory = await play(workflow, self.task, replies, tools=self.tools())
            acted = Counter(step.agent for step in trajectory.steps)
            over = {agent: acted[agent] for agent, most in workflow.max_turns.items() if acted[agent] > most}
            assert not over, f"max_turns is {dict(workflow.max_turns)}, and there were {over} actions"

    async def test_survives_replies_that_are_empty_or_nonsense(self) -> None:
        """Whatever an agent replies, the trajectory is graded. Check a reply before you parse it, and treat one that
        cannot be parsed as a wrong answer, not as an exception."""
        for reply in NONSENSE:
            trajectory = await play(self.workflow(), self.task, _always(reply), tools=self.tools())
            assert trajectory.error is None, f"the reply {reply!r} broke the workflow: {trajectory.error}"

    async def test_survives_a_coach_that_fails(self) -> None:
        """Where you await `stage.verdict`, check `verdict.status` before its text; `verdict.score` may be None."""
        trajectory = await play(self.workflow(), self.task, self.replies, tools=self.tools(), coach=_BrokenCoach())
        assert trajectory.error is None, "a failing coach must not stop the workflow"
        assert all(verdict.status == "failed" for verdict in trajectory.verdicts)

    async def test_errors_of_actions_are_not_swallowed(self) -> None:
        """An error of `stage.act` is recorded, by its type. Do not catch everything around `act`: an aborted trajectory
        that looks finished would be learned from as if the team itself had failed."""
        trajectory = await play(self.workflow(), self.task, _raise_error, tools=self.tools())
        assert trajectory.error is not None, "an error of stage.act was swallowed: let it through"
        assert trajectory.error.kind == RolloutError.__name__, trajectory.error

    async def test_concurrent_trajectories_do_not_mix(self) -> None:
        """One instance runs many trajectories, each as if alone. Keep state in local variables of `run`."""
        alone = await play(self.workflow(), self.task, self.replies, tools=self.tools())
        workflow, tools = self.workflow(), self.tools()
        scripts: Sequence[Sequence[str] | ReplyScript] = (self.replies, *map(_always, NONSENSE[:2]), self.replies)
        first, *_, last = await asyncio.gather(*(play(workflow, self.task, script, tools=tools) for script in scripts))
        later = await play(workflow, self.task, self.replies, tools=tools)
        same = all(_content(mixed) == _content(alone) for mixed in (first, last, later))
        assert same, "a trajectory came out otherwise beside others: no state on `self`"

    async def test_replays_from_its_record(self, tmp_path: Path) -> None:
        """A replay of the recorded actions gives the same outcome, as a killed run resumes by it. Take randomness from
        `stage.random` and files from `stage.files`, and use neither the time nor random ids."""
        first = await play(self.workflow(), self.task, self.replies, tools=self.tools(), archive=tmp_path)
        recorded = Replay(steps=first.steps, verdicts=())
        again = await play(self.workflow(), self.task, [], tools=self.tools(), recorded=recorded, archive=tmp_path)
        assert again.error is None, f"the replay diverged or went live: {again.error}"
        assert again.steps == first.steps
        assert again.outcome == first.outcome


class CoachContract:
    """Subclass it, implement `coach`, and set `scenes` (see `scenes_of`), and `trajectories` if the coach learns."""

    scenes: Sequence[Scene]
    trajectories: Sequence[Trajectory] = ()  # Of one iteration with their verdicts, passed to `learn`.

    def coach(self) -> Coach:
        """Create a coach."""
        raise NotImplementedError

    async def test_every_verdict_is_scored_abstained_or_failed(self) -> None:
        """`score` returns `Verdict.scored(points, reason)` with 0 to 10 points, or `Verdict.abstained(reason)`. There
        is no default score: a made-up number would be learned from."""
        for scene in self.scenes:
            assert isinstance(await self.coach().score(scene), Verdict)

    async def test_whatever_an_agent_says_is_judged(self) -> None:
        """An empty reply, or nonsense, gets a verdict too: check a reply before you parse it; give it few points, or
        abstain. After an exception there is no verdict, and too many of them stop the run."""
        for scene in self.scenes:
            for text in NONSENSE:
                reply = Message(role="assistant", content=text)
                step = replace(scene.step, reply=reply, completion=replace(scene.step.completion, text=text))
                assert isinstance(await self.coach().score(replace(scene, step=step)), Verdict)

    async def test_without_the_truth_it_gives_a_verdict_too(self) -> None:
        """`scene.task.reference` is None unless `coach.reference_for` lists the agent: abstain, with that reason."""
        for scene in self.scenes:
            blind = replace(scene, task=replace(scene.task, reference=None), truth=None)
            assert isinstance(await self.coach().score(blind), Verdict)

    async def test_order_of_scoring_does_not_matter(self) -> None:
        """A resume repeats no order: `score` may read the coach's state but not change it. Learn in `learn`."""
        coach = self.coach()
        forward = [await coach.score(scene) for scene in self.scenes]
        backward = [await coach.score(scene) for scene in reversed(self.scenes)]
        assert forward == backward[::-1], "score() must not write the coach's state: learn in learn()"

    async def test_concurrent_scenes_do_not_mix(self) -> None:
        """Many scenes are scored concurrently. Keep the state of one in local variables of `score`."""
        coach = self.coach()
        alone = [await coach.score(scene) for scene in self.scenes]
        assert await asyncio.gather(*(coach.score(scene) for scene in self.scenes)) == alone

    async def test_a_review_gives_a_verdict_per_scene(self) -> None:
        """`review` returns one verdict per scene, in order: `Verdict.abstained(reason)` where it cannot judge."""
        verdicts = await self.coach().review(self.scenes)
        assert [type(verdict) for verdict in verdicts] == [Verdict] * len(self.scenes)

    async def test_state_survives_a_round_trip(self) -> None:
        """Put all that `learn` changes into `state_dict`, as JSON values: it is saved in checkpoints."""
        coach, fresh = self.coach(), self.coach()
        coach.learn(self.trajectories)
        kept = json.loads(json.dumps(coach.state_dict()))
        assert kept == coach.state_dict(), "the state is not JSON: keys are texts, and tuples become lists"
        fresh.load_state_dict(kept)
        assert fresh.state_dict() == coach.state_dict()
        for scene in self.scenes:
            assert await fresh.score(scene) == await coach.score(scene), "part of the state is not in state_dict()"

    async def test_closing_twice_is_fine(self) -> None:
        """`close` releases open resources and may be called again."""
        coach = self.coach()
        await coach.close()
        await coach.close()


class _BrokenCoach(Coach):
    async def score(self, scene: Scene) -> Verdict:
        raise RuntimeError("this coach always fails")


def _always(reply: str) -> ReplyScript:
    return lambda prompt, sampling: reply


def _raise_error(prompt: str, sampling: Sampling) -> str:
    raise RolloutError("planted by the contract")


def _content(trajectory: Trajectory) -> object:
    turns = [(step.agent, step.messages, step.reply, step.calls) for step in trajectory.steps]
    return turns, trajectory.outcome, trajectory.error
