"""The coach without a model: rules over contracts, tool results and skill, by the table in `marks`.

An agent is not charged with faults of its predecessors. Where a file that it needs is missing or faulty, its own
programs are rerun on reference artifacts, and the better of both runs gives the score (`substitution`). The predecessor
is then to blame, unless the programs fail on good files as well.
"""

from __future__ import annotations

import asyncio

from mappa_core import NOBODY, Bench, Coach, ConfigError, NoOptions, Scene, Task, Verdict
from mappa_dsbench.coach.reference_rerun import ReferenceRerunner
from mappa_dsbench.coach.scoring import FULL_POINTS, ActionScore, Attempt, score_execution, score_faults, score_skill
from mappa_dsbench.coach.skill import compute_skill
from mappa_dsbench.coach.upstream_faults import find_upstream_fault
from mappa_dsbench.contracts import inspect_action
from mappa_dsbench.roles import ANALYST, MODELER, ROLES


class RuleCoach(Coach):
    """The offer `dsbench-rules`. It needs the truth for the Modeler alone (`coach.reference_for`); where the truth is
    not shown, it cannot tell a usable model from a good one, and abstains."""

    def __init__(self, options: NoOptions) -> None:
        self._tools: tuple[Bench, ReferenceRerunner] | None = None

    def set_bench(self, bench: Bench) -> None:
        self._tools = (bench, ReferenceRerunner(bench))

    async def score(self, scene: Scene) -> Verdict:
        if scene.step.agent not in ROLES:
            return Verdict.abstained(f"There are no rules for {scene.step.agent}.")
        if self._tools is None:
            raise ConfigError("the coach dsbench-rules tries programs out: it needs a run with the tool python")
        bench, rerunner = self._tools
        played = await _inspect_attempt(scene, bench)
        action_score = await _score_attempt(played, scene.task)
        upstream = find_upstream_fault(scene)
        if upstream is None or action_score.score == FULL_POINTS or played.truncated or not played.results:
            return _to_verdict(action_score, scene.step.agent, action_score.why, NOBODY)
        rerun = await rerunner.rerun(scene)
        tried = Attempt(agent=played.agent, truncated=False, results=rerun.results, facts=rerun.facts)
        better = await _score_attempt(tried, scene.task)
        if better.score is not None and action_score.score is not None and action_score.score >= better.score:
            better = action_score
        why = f"{action_score.why} As {upstream.what}, the programs were run again on reference artifacts: {better.why}"
        return _to_verdict(better, scene.step.agent, why, upstream.agent)


async def _inspect_attempt(scene: Scene, bench: Bench) -> Attempt:
    """Return the action as played. Files that were not inspected, as the agent had turns left, are inspected now."""
    step, inspection = scene.step, scene.step.inspection
    if inspection is None or not (inspection.facts["faults"] or inspection.facts["probed"]):
        inspection = await inspect_action(scene, bench, last=True, done=True)
    return Attempt(agent=step.agent, truncated=step.truncated, results=step.results, facts=inspection.facts)


async def _score_attempt(attempt: Attempt, task: Task) -> ActionScore:
    action_score = score_execution(attempt) or score_faults(attempt)
    if action_score is not None:
        return action_score
    if attempt.agent == ANALYST and attempt.facts["faithful"] is None:
        return ActionScore(None, "The file is accepted; whether it holds what the model says cannot be told.", False)
    if attempt.agent != MODELER:
        return ActionScore(FULL_POINTS, "The contract is kept.", False)
    return score_skill(await asyncio.to_thread(compute_skill, attempt.facts["predictions"], task))


def _to_verdict(action_score: ActionScore, agent: str, why: str, otherwise: str) -> Verdict:
    """Build the verdict; `otherwise` is to blame where the agent itself is not at fault."""
    if action_score.score is None:
        return Verdict.abstained(why)
    return Verdict.scored(action_score.score, why, blame=agent if action_score.at_fault else otherwise)
