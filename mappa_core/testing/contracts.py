"""Contracts of workflows and coaches, to be subclassed: pytest names the clause that a plugin does not keep, and what
to do. Needs pytest-asyncio in auto mode."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mappa_core.errors import RolloutError
from mappa_core.protocols import Coach, Tool, Workflow
from mappa_core.records import Message, Sampling, Scene, Task, Trajectory, Verdict
from mappa_core.rollout.replay import Replay
from mappa_core.testing.fakes import Script
from mappa_core.testing.playing import play

CANARY = "canary-7f3a91"
NONSENSE = ("", "```", "<think>", "\\boxed{", "\x00 \ud7ff")


class WorkflowContract:
    """Subclass it, set `task` and `replies` (one trajectory's actions in order), write `workflow`, and `tools` if there
    are any."""

    task: Task
    replies: Sequence[str]

    def workflow(self) -> Workflow:
        """A fresh workflow."""
        raise NotImplementedError

    def tools(self) -> Mapping[str, Tool]:
        """The tools that the workflow offers its agents."""
        return {}

    async def test_plays_to_its_end_and_records_its_metric(self) -> None:
        """`run` returns, and records the workflow's `metric`. Record it: `stage.record(correct=…)`, or name the key
        that you record in the class attribute `metric`. Held-out evaluation reports that figure and nothing else."""
        workflow = self.workflow()
        trajectory = await play(workflow, self.task, self.replies, tools=self.tools())
        assert trajectory.error is None, f"the workflow did not finish: {trajectory.error}"
        assert workflow.metric in trajectory.outcome, f"record the outcome: stage.record({workflow.metric}=…)"

    async def test_the_truth_reaches_no_agent(self) -> None:
        """`task.reference` stands in no message to an agent. Give a text to `stage.grade` and a number comes back; the
        truth is for `grade`, `grade_file` and `reveal` alone."""
        task = replace(self.task, reference=CANARY)
        trajectory = await play(self.workflow(), task, self.replies, tools=self.tools())
        seen = [message.content for step in trajectory.steps for message in step.messages]
        assert not any(CANARY in text for text in seen), "an agent saw task.reference: grade with stage.grade"

    async def test_only_declared_agents_act(self) -> None:
        """Every agent that acts is a key of `agents`, which says to the coach what it is for. Add its `Role`."""
        workflow = self.workflow()
        trajectory = await play(workflow, self.task, self.replies, tools=self.tools())
        unknown = {step.agent for step in trajectory.steps} - set(workflow.agents)
        assert not unknown, f"no role is declared for {', '.join(sorted(unknown))}: add it to `agents`"

    async def test_no_agent_acts_more_often_than_it_says(self) -> None:
        """`most_turns` bounds the actions of each agent that it names: `mappa plan` counts calls and tokens by it.
        Raise the bound, or end the agent's turns earlier."""
        workflow = self.workflow()
        for replies in (self.replies, _always("nonsense")):
            trajectory = await play(workflow, self.task, replies, tools=self.tools())
            acted = Counter(step.agent for step in trajectory.steps)
            over = {agent: acted[agent] for agent, most in workflow.most_turns.items() if acted[agent] > most}
            assert not over, f"most_turns is {dict(workflow.most_turns)}, and there were {over} actions"

    async def test_survives_replies_that_are_empty_or_nonsense(self) -> None:
        """Whatever an agent says, the trajectory is played to its end and graded. Models say anything: check a reply
        before you take it apart, and let what cannot be read be a wrong answer, not an exception."""
        for reply in NONSENSE:
            trajectory = await play(self.workflow(), self.task, _always(reply), tools=self.tools())
            assert trajectory.error is None, f"the reply {reply!r} broke the workflow: {trajectory.error}"

    async def test_survives_a_coach_that_fails(self) -> None:
        """A coach that raises gives `failed` verdicts and the team plays on. Where you await `stage.verdict`, look at
        `verdict.status` before you use its words, and never at `verdict.score` as if there always were one."""
        trajectory = await play(self.workflow(), self.task, self.replies, tools=self.tools(), coach=_BrokenCoach())
        assert trajectory.error is None, "a failing coach must not stop the workflow"
        assert all(verdict.status == "failed" for verdict in trajectory.verdicts)

    async def test_what_goes_wrong_in_an_action_is_not_hidden(self) -> None:
        """An error of `stage.act` is recorded on the trajectory, by its type. Do not catch everything around `act`: a
        trajectory that broke off and looks finished is learned from as if the team had failed by itself."""
        trajectory = await play(self.workflow(), self.task, _breaking, tools=self.tools())
        assert trajectory.error is not None, "an error of stage.act was swallowed: let it through"
        assert trajectory.error.kind == RolloutError.__name__, trajectory.error

    async def test_trajectories_at_once_do_not_mix(self) -> None:
        """One instance plays many trajectories at once, and each comes out as if it were alone. Keep what belongs to a
        trajectory in the variables of `run`, never on `self`."""
        alone = await play(self.workflow(), self.task, self.replies, tools=self.tools())
        workflow, tools = self.workflow(), self.tools()
        others = [play(workflow, self.task, _always(reply), tools=tools) for reply in NONSENSE[:2]]
        first, *_, last = await asyncio.gather(
            play(workflow, self.task, self.replies, tools=tools),
            *others,
            play(workflow, self.task, self.replies, tools=tools),
        )
        later = await play(workflow, self.task, self.replies, tools=tools)
        for mixed in (first, last, later):
            assert _told(mixed) == _told(alone), "a trajectory came out otherwise beside others: no state on `self`"

    async def test_replays_from_its_record(self, tmp_path: Path) -> None:
        """Run again over its recorded actions, the workflow asks for the same actions and records the same outcome.
        Take randomness from `stage.random`, files from `stage.files`, and neither time nor ids from anywhere: a run
        that was killed goes on by replaying."""
        first = await play(self.workflow(), self.task, self.replies, tools=self.tools(), archive=tmp_path)
        recorded = Replay(steps=first.steps, verdicts=())
        again = await play(self.workflow(), self.task, [], tools=self.tools(), recorded=recorded, archive=tmp_path)
        assert again.error is None, f"the replay diverged or went live: {again.error}"
        assert again.steps == first.steps
        assert again.outcome == first.outcome


class CoachContract:
    """Subclass it, write `coach`, and set `scenes` (`scenes_of` plays a workflow for them), and `trajectories` where
    the coach learns."""

    scenes: Sequence[Scene]
    trajectories: Sequence[Trajectory] = ()
    """One iteration, with its verdicts: what `learn` is given."""

    def coach(self) -> Coach:
        """A fresh coach."""
        raise NotImplementedError

    async def test_every_verdict_is_scored_abstained_or_failed(self) -> None:
        """`score` returns a `Verdict`: `Verdict.scored(points, reason)` with 0 to 10 points, or
        `Verdict.abstained(reason)` where it cannot be judged. There is no default score, and a number made up is
        learned from."""
        for scene in self.scenes:
            assert isinstance(await self.coach().score(scene), Verdict)

    async def test_whatever_an_agent_says_is_judged(self) -> None:
        """An empty reply, or nonsense, has a verdict too. Look before you take a reply apart; what cannot be read earns
        few points, or is abstained from. An exception costs the action its verdict, and the run its patience."""
        for scene in self.scenes:
            for text in NONSENSE:
                reply = Message(role="assistant", content=text)
                step = replace(scene.step, reply=reply, completion=replace(scene.step.completion, text=text))
                assert isinstance(await self.coach().score(replace(scene, step=step)), Verdict)

    async def test_without_the_truth_it_gives_a_verdict_too(self) -> None:
        """`scene.task.reference` is None unless the recipe lists the agent in `coach.reference_for`. Abstain, and say
        that the truth is not shown."""
        for scene in self.scenes:
            blind = replace(scene, task=replace(scene.task, reference=None), truth=None)
            assert isinstance(await self.coach().score(blind), Verdict)

    async def test_order_of_scoring_does_not_matter(self) -> None:
        """A scene's verdict is the same whatever was judged before it. `score` may read the coach's state and must not
        write it: actions are judged as they happen, in no order that a resume would repeat. Learn in `learn`."""
        coach = self.coach()
        forward = [await coach.score(scene) for scene in self.scenes]
        backward = [await coach.score(scene) for scene in reversed(self.scenes)]
        assert forward == backward[::-1], "score() must not write the coach's state: learn in learn()"

    async def test_scenes_judged_at_once_are_judged_as_one_by_one(self) -> None:
        """Many scenes are scored at once. Keep what belongs to one in the variables of `score`, not on `self`."""
        coach = self.coach()
        alone = [await coach.score(scene) for scene in self.scenes]
        assert await asyncio.gather(*(coach.score(scene) for scene in self.scenes)) == alone

    async def test_a_review_gives_a_verdict_per_scene(self) -> None:
        """`review` returns as many verdicts as it was given scenes, in their order. Where nothing can be said of one,
        put `Verdict.abstained(reason)` in its place."""
        verdicts = await self.coach().review(self.scenes)
        assert [type(verdict) for verdict in verdicts] == [Verdict] * len(self.scenes)

    async def test_state_survives_a_round_trip(self) -> None:
        """What `state_dict` gives is JSON, and a fresh coach that loads it has the same state and says the same. Put
        all that `learn` changes into `state_dict`, as numbers, texts, lists and objects: it is kept in checkpoints."""
        coach, fresh = self.coach(), self.coach()
        coach.learn(self.trajectories)
        kept = json.loads(json.dumps(coach.state_dict()))
        assert kept == coach.state_dict(), "the state is not JSON: keys are texts, and tuples become lists"
        fresh.load_state_dict(kept)
        assert fresh.state_dict() == coach.state_dict()
        for scene in self.scenes:
            assert await fresh.score(scene) == await coach.score(scene), "part of the state is not in state_dict()"

    async def test_closing_twice_is_fine(self) -> None:
        """`close` releases what is open and may be called again."""
        coach = self.coach()
        await coach.close()
        await coach.close()


class _BrokenCoach(Coach):
    async def score(self, scene: Scene) -> Verdict:
        raise RuntimeError("this coach always fails")


def _always(reply: str) -> Script:
    return lambda prompt, sampling: reply


def _breaking(prompt: str, sampling: Sampling) -> str:
    raise RolloutError("planted by the contract")


def _told(trajectory: Trajectory) -> object:
    """What was asked and said, and what came of it."""
    said = [(step.agent, step.messages, step.reply, step.calls) for step in trajectory.steps]
    return said, trajectory.outcome, trajectory.error
