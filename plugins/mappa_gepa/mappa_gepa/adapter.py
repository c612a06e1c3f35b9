"""The team as GEPA sees it: candidates are the agents' prompts, examples are tasks, scores are the workflow's metric.

The library calls from a thread of its own; what waits is done on the run's event loop. The library logs some exceptions
and goes on, so the first one is kept, stops the search and is raised at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from gepa.core.adapter import EvaluationBatch

from mappa_core import Split, Task, Trajectory
from mappa_gepa.feedback import ActionFeedback, outcome_feedback, own_feedback
from mappa_gepa.options import ImproveOptions
from mappa_gepa.proposer import Proposer
from mappa_gepa.rollouts import CandidateRollouts

T = TypeVar("T")
Samples = tuple[Trajectory, ...]
Batch = EvaluationBatch[Samples, float]


class TeamAdapter:
    """Implements the library's `GEPAAdapter`.

    Args:
        propose_ids: ids of the tasks that proposals learn from, which coaches judge.
        unreasoned: agents whose coach is shown the truth, so that its reasons are withheld.
        loop: the event loop of rollouts and proposals.
    """

    def __init__(
        self,
        rollouts: CandidateRollouts,
        proposer: Proposer,
        *,
        options: ImproveOptions,
        metric: str,
        propose_ids: frozenset[str],
        unreasoned: frozenset[str],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.error: BaseException | None = None
        """The first exception, after which the search must stop."""
        self._rollouts = rollouts
        self._proposer = proposer
        self._options = options
        self._metric = metric
        self._propose_ids = propose_ids
        self._unreasoned = unreasoned
        self._loop = loop

    def evaluate(self, batch: list[Task], candidate: dict[str, str], capture_traces: bool = False) -> Batch:
        """Play `batch`, all of one part of the tasks, with the prompts of `candidate`."""
        split: Split = "train" if batch[0].id in self._propose_ids else "eval"
        before = self._rollouts.count
        results = self._wait(self._rollouts.play(candidate, batch, split))
        scores = [result.score for result in results]
        trajectories = [result.trajectories for result in results] if capture_traces else None
        calls = self._rollouts.count - before
        return EvaluationBatch(outputs=scores, scores=scores, trajectories=trajectories, num_metric_calls=calls)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Batch, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the feedback on each agent's own actions; the library takes it as mappings."""
        played = [trajectory for samples in eval_batch.trajectories or () for trajectory in samples]
        return self._keep_error(
            lambda: {
                agent: [{"feedback": one} for one in self._feedback(played, agent)] for agent in components_to_update
            }
        )

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Return new prompts; without those for which there is no feedback and those that are refused."""
        texts: dict[str, str] = {}
        for agent in components_to_update:
            feedback = [one["feedback"] for one in reflective_dataset[agent]]
            text = self._wait(self._proposer.propose(agent, candidate, feedback)) if feedback else None
            if text is not None:
                texts[agent] = text
        return texts

    def _feedback(self, played: Sequence[Trajectory], agent: str) -> list[ActionFeedback]:
        if self._options.feedback == "outcome":
            return outcome_feedback(played, agent, self._metric)
        return own_feedback(played, agent, hide_reasons=agent in self._unreasoned)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self.error is not None:  # the library tries again what failed
            work.close()
            raise self.error
        return self._keep_error(lambda: asyncio.run_coroutine_threadsafe(work, self._loop).result())

    def _keep_error(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException as error:
            self.error = self.error or error
            raise
