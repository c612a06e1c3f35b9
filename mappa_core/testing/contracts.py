"""Contracts to subclass: pytest names the clause that a plugin does not keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mappa_core.protocols import Coach, Tool, Workflow
from mappa_core.records import Scene, Task, Verdict
from mappa_core.rollout.replay import Replay
from mappa_core.testing.fakes import Script
from mappa_core.testing.play import play

CANARY = "canary-7f3a91"


class WorkflowContract:
    """Subclass it, set `workflow`, `task` and `replies` (one trajectory's actions in order), and `tools` if any."""

    task: Task
    replies: Sequence[str]

    def workflow(self) -> Workflow:
        """A fresh workflow."""
        raise NotImplementedError

    def tools(self) -> Mapping[str, Tool]:
        """The tools that the workflow offers its agents."""
        return {}

    async def test_plays_to_its_end_and_records_its_metric(self) -> None:
        workflow = self.workflow()
        trajectory = await play(workflow, self.task, self.replies, tools=self.tools())
        assert trajectory.error is None, f"the workflow did not finish: {trajectory.error}"
        assert workflow.metric in trajectory.outcome, f"record the outcome: stage.record({workflow.metric}=…)"

    async def test_the_truth_reaches_no_agent(self) -> None:
        task = replace(self.task, reference=CANARY)
        trajectory = await play(self.workflow(), task, self.replies, tools=self.tools())
        seen = [message.content for step in trajectory.steps for message in step.messages]
        assert not any(CANARY in text for text in seen), "an agent saw task.reference: grade with stage.grade"

    async def test_only_declared_agents_act(self) -> None:
        workflow = self.workflow()
        trajectory = await play(workflow, self.task, self.replies, tools=self.tools())
        assert {step.agent for step in trajectory.steps} <= set(workflow.agents)

    async def test_survives_replies_that_are_empty_or_nonsense(self) -> None:
        for reply in ("", "```", "<think>", "\\boxed{", "\x00 \ud7ff"):
            trajectory = await play(self.workflow(), self.task, _always(reply), tools=self.tools())
            assert trajectory.error is None, f"the reply {reply!r} broke the workflow: {trajectory.error}"

    async def test_survives_a_coach_that_fails(self) -> None:
        trajectory = await play(self.workflow(), self.task, self.replies, tools=self.tools(), coach=_BrokenCoach())
        assert trajectory.error is None, "a failing coach must not stop the workflow"
        assert all(verdict.status == "failed" for verdict in trajectory.verdicts)

    async def test_replays_from_its_record(self, tmp_path: Path) -> None:
        first = await play(self.workflow(), self.task, self.replies, tools=self.tools(), archive=tmp_path)
        recorded = Replay(steps=first.steps, verdicts=())
        again = await play(self.workflow(), self.task, [], tools=self.tools(), recorded=recorded, archive=tmp_path)
        assert again.error is None, f"the replay diverged or went live: {again.error}"
        assert again.steps == first.steps
        assert again.outcome == first.outcome


class CoachContract:
    """Subclass it; set `coach` and `scenes`."""

    scenes: Sequence[Scene]

    def coach(self) -> Coach:
        """A fresh coach."""
        raise NotImplementedError

    async def test_every_verdict_is_scored_abstained_or_failed(self) -> None:
        for scene in self.scenes:
            assert isinstance(await self.coach().score(scene), Verdict)

    async def test_order_of_scoring_does_not_matter(self) -> None:
        coach = self.coach()
        forward = [await coach.score(scene) for scene in self.scenes]
        backward = [await coach.score(scene) for scene in reversed(self.scenes)]
        assert forward == backward[::-1], "score() must not write the coach's state: learn in learn()"

    async def test_state_survives_a_round_trip(self) -> None:
        coach, fresh = self.coach(), self.coach()
        coach.learn([])
        fresh.load_state_dict(coach.state_dict())
        assert fresh.state_dict() == coach.state_dict()


class _BrokenCoach(Coach):
    async def score(self, scene: Scene) -> Verdict:
        raise RuntimeError("this coach always fails")


def _always(reply: str) -> Script:
    return lambda prompt, sampling: reply
