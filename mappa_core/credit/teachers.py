"""Teachers: their log-probabilities of sampled tokens, for estimators that read them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from mappa_core.credit.build_experience import select_rows
from mappa_core.credit.by_agent import estimators_by_agent
from mappa_core.credit.ragged import element_indices
from mappa_core.experience import Experience
from mappa_core.protocols import Engine, Estimator, Render, TeacherEstimator
from mappa_core.records import Trajectory


def find_teacher_policies(estimator: Estimator, agents: Collection[str], saw_truth: Collection[str]) -> tuple[str, ...]:
    """Return the policies that teach, each once. Raises ConfigError if an agent's estimator must not teach it."""
    names = [teacher.teacher_policy(own, saw_truth) for teacher, own in _teacher_estimators(estimator, agents)]
    return tuple(dict.fromkeys(name for name in names if name is not None))


async def score_by_teachers(
    experience: Experience, trajectories: Sequence[Trajectory], estimator: Estimator, *, engine: Engine, render: Render
) -> Experience:
    """Fill in teacher_logprobs, if the estimator reads them."""
    logprobs = np.full(len(experience.tokens), np.nan, dtype=np.float32)
    row_of = {step: row for row, step in enumerate(experience.steps)}
    teachers = list(_teacher_estimators(estimator, experience.agents))
    for teacher, agents in teachers:
        own = np.isin(experience.agent, [experience.agents.index(agent) for agent in agents])
        view = teacher.teacher_view(select_rows(experience, np.flatnonzero(own)), trajectories, render)
        view = _readable(view, engine)
        if view.steps:
            # By step, as a teacher may leave rows out.
            rows = np.array([row_of[step] for step in view.steps], dtype=np.int64)
            # What a sampler found was found after other prompts, or by another policy: an engine must not believe it.
            view = replace(view, logprobs=np.full_like(view.logprobs, np.nan))
            scored = await engine.score(view, reference=False)
            logprobs[element_indices(experience.offsets, rows)] = scored.old_logprobs
    return replace(experience, teacher_logprobs=logprobs) if teachers else experience


def _readable(view: Experience, engine: Engine) -> Experience:
    """Leave out rows beyond the window of who reads them: a model's guess at positions that it never saw teaches
    nothing."""
    windows = np.full(len(view.policies), np.inf)
    for policy in np.unique(view.policy):
        window = engine.sampler(view.policies[policy]).window
        windows[policy] = math.inf if window is None else window
    fits = np.diff(view.prompt_offsets) + view.lengths <= windows[view.policy]
    return select_rows(view, np.flatnonzero(fits))


def _teacher_estimators(
    estimator: Estimator, agents: Collection[str]
) -> Iterator[tuple[TeacherEstimator, tuple[str, ...]]]:
    for part, own_agents in estimators_by_agent(estimator, agents):
        if isinstance(part, TeacherEstimator) and own_agents:
            yield part, own_agents
