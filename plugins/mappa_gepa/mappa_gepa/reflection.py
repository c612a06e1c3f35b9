"""The optimiser of prompts `reflection`: between the iterations of a training it proposes prompts from the verdicts on
the last ones, and keeps those that gain on tasks that are not trained on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from mappa.runs import RunReader
from mappa.statistics import Interval, paired_gain
from mappa_core import Task, Trajectory
from mappa_gepa.feedback import ActionFeedback, blame_points, own_feedback
from mappa_gepa.options import ImproveOptions, ReflectionOptions
from mappa_gepa.proposer import Proposer
from mappa_gepa.refusals import LeakCheck
from mappa_gepa.rollouts import CandidateRollouts, Prompts

if TYPE_CHECKING:
    from mappa.runs import RunFolder
    from mappa.sessions import Session

CHOICE_EVENT = "prompt_choice"
"""What became of a proposal in a round: the round, the number of the proposal, the agent, whether its prompt was kept,
and its gain on the tasks that choose; None if it was refused, and so not tried."""
RESUME = "mappa train --resume"


class ReflectiveOptimizer:
    """Implements the protocol `PromptOptimizer`.

    A round makes some proposals. Each is for the agent that the verdicts on the last iterations blame most, a second
    one for the same agent counting half its blame, and is shown the worst of its own actions. A prompt is kept if its
    gain over the prompts so far, with the current weights and paired by task, has a 95 % interval above 0.
    """

    def __init__(self, options: ReflectionOptions) -> None:
        self._options = options

    def set_apart(self, tasks: Sequence[Task]) -> Collection[str]:
        """Return the ids of the tasks that choose, and of others in their clusters."""
        clusters = {_cluster(task) for task in self._choosing(tasks)}
        return {task.id for task in tasks if _cluster(task) in clusters}

    async def improve(self, session: Session, folder: RunFolder, done: int) -> Mapping[str, str]:
        """Return the prompts that a round after `done` iterations changes. Raises GuardStop if the spending cap is
        reached, or a provider or tools failed."""
        prompts = session.workflow.prompts
        tasks = self._choosing(session.tasks("train"))
        rollouts = CandidateRollouts(session, folder, samples=1, resume=RESUME, round=done)
        proposer = self._proposer(session, folder, done, rollouts)
        judged = _judged(session, folder, done)
        kept, tries = dict(prompts), Counter[str]()
        for number in range(self._options.proposals):
            agent = self._next_agent(judged, kept, tries)
            feedback = [] if agent is None else self._feedback(session, judged, agent)
            if agent is None or not feedback:
                break
            text = await proposer.propose(agent, kept, feedback)
            gain = None if text is None else await self._gain(rollouts, kept, {**kept, agent: text}, tasks)
            is_kept = text is not None and gain is not None and (gain.low or 0.0) > 0
            if text is not None and is_kept:
                kept[agent] = text
            folder.store.record_event(CHOICE_EVENT, round=done, number=number, agent=agent, kept=is_kept, gain=gain)
        return {agent: text for agent, text in kept.items() if text != prompts[agent]}

    def _choosing(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        return tuple(sorted(tasks, key=_place)[: self._options.tasks])

    def _proposer(self, session: Session, folder: RunFolder, done: int, rollouts: CandidateRollouts) -> Proposer:
        section, team = session.config.prompts, session.team
        assert section is not None  # a round is of a run whose config has one
        with RunReader(folder.path) as reader:
            originals = {agent: next(iter(texts.values())) for agent, texts in reader.prompts.items()}
        options = ImproveOptions(
            proposer=section.policy, max_growth=self._options.max_growth, max_tokens=self._options.max_tokens
        )
        return Proposer(
            team.api_policies[section.policy], folder, options=options, roles=session.workflow.agents,
            originals=originals, leaks=LeakCheck(session.tasks("train"), tuple(originals.values())),
            is_known=rollouts.is_known, ledger=team.ledger, seed=team.seed_of("proposals", done) % 2**31,
            resume=RESUME, round=done,
        )  # fmt: skip

    def _next_agent(self, judged: Sequence[Trajectory], prompts: Prompts, tries: Counter[str]) -> str | None:
        points = blame_points(judged, tuple(prompts))
        chosen = max(points, key=lambda agent: points[agent] / (1 + tries[agent]))
        tries[chosen] += 1
        return chosen if points[chosen] else None

    def _feedback(self, session: Session, judged: Sequence[Trajectory], agent: str) -> list[ActionFeedback]:
        found = own_feedback(judged, agent, hide_reasons=agent in session.team.reference_for)
        return found[: self._options.examples]

    async def _gain(
        self, rollouts: CandidateRollouts, kept: Prompts, candidate: Prompts, tasks: Sequence[Task]
    ) -> Interval:
        before, after = [await rollouts.play(prompts, tasks, "eval") for prompts in (kept, candidate)]
        return paired_gain([one.score for one in before], [one.score for one in after], list(map(_cluster, tasks)))


def _judged(session: Session, folder: RunFolder, done: int) -> list[Trajectory]:
    """The trajectories of the iterations since the last round."""
    section = session.config.prompts
    assert section is not None
    folder.store.flush()
    with RunReader(folder.path) as reader:
        played = [reader.trajectories.where(split="train", iteration=at) for at in range(done - section.every, done)]
        return [reader.trajectory(row.id) for rows in played for row in rows if row.status != "open"]


def _place(task: Task) -> tuple[bytes, str]:
    return hashlib.blake2b(f"prompts/{_cluster(task)}".encode()).digest(), task.id


def _cluster(task: Task) -> str:
    return f"task {task.id}" if task.cluster is None else f"cluster {task.cluster}"
