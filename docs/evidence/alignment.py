"""Which way do rewards point? Gradients of single batches against the gradient of the true objective.

No learning rate has a say here. The untrained team plays batches of 32 rollouts, and no weight moves. Of every batch
and agent two gradients are taken, as an update of the recipe would: one with the coach's verdicts as rewards
(*process*), one with the outcome of the rollout on every action (*outcome*). The true objective is the outcome; its
gradient is the mean of the outcome gradients of all *other* batches, so that no batch is compared with itself.

Claimed beforehand. For every agent the cosine of a batch's process gradient to it is larger than that of the same
batch's outcome gradient: the 95 % interval of the difference over seeds lies above 0. Both cosines would be equal if
verdicts told no more than outcomes, and that of process smaller if the coach wanted something else than right answers.
How far it does is the cosine of the two means over all batches; the cosine of the means of two halves of the outcome
gradients is what noise leaves to be reached.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from arms import table
from claims import Standing
from study import Asked, Study, study_options

from mappa.evaluation.statistics import mean_interval
from mappa.runs import RunReader
from mappa.session.builder import build_estimator
from mappa.session.policies import assign_policies, build_policy_specs
from mappa.session.trust import restore_trusted
from mappa.store.folder import CONFIG
from mappa_core.config.schema import RunConfig
from mappa_core.credit.build_experience import build_experience
from mappa_core.credit.rewards import compute_rewards
from mappa_core.errors import ConfigError
from mappa_core.experience import Experience
from mappa_core.plugins import Registry
from mappa_core.records import Float32, Interval, Trajectory
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.learning.scoring import merge_scores, score_policy
from mappa_engine.learning.update import PolicyUpdate
from mappa_engine.local.learner import LocalLearner
from mappa_engine.local.models import load_model
from mappa_engine.local.policy import Policy

STILL = ("train.learning_rate=1e-30", "train.warmup_iterations=0", "eval.problems=8")
"""A step this small moves no weight of float32."""
ARMS: Mapping[str, tuple[str, ...]] = {"process": (), "outcome": ("shapers=[{use: outcome}]",)}
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosines:
    """Of one agent and seed: the mean over batches of what a batch's gradient has with the objective's, `process` and
    `outcome`; `limit`, that of the two means over all batches; `halves`, that of the outcome's means over the even and
    the odd batches. A batch whose outcomes are all the same points nowhere: so many are `silent`, and left out of
    both."""

    agent: str
    seed: int
    process: float
    outcome: float
    limit: float
    halves: float
    silent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An agent over all seeds; `more` is what process has above outcome, paired by seed."""

    agent: str
    process: Interval
    outcome: Interval
    more: Interval
    standing: Standing

    @classmethod
    def of(cls, agent: str, found: Sequence[Cosines]) -> Row:
        own = [one for one in found if one.agent == agent]
        more = mean_interval([one.process - one.outcome for one in own])
        standing: Standing = "open"
        if more.low is not None:
            standing = "held" if more.low > 0 else "not held"
        return cls(
            agent=agent,
            process=mean_interval([one.process for one in own]),
            outcome=mean_interval([one.outcome for one in own]),
            more=more,
            standing=standing,
        )


class Still(LocalLearner):
    """Takes the gradient of a step for what it is, and no step."""

    gradient: Float32

    def step(self, learning_rate: float) -> None:
        parts = [one.grad.flatten() for one in self._policy.model.parameters() if one.grad is not None]
        self.gradient = torch.cat(parts).numpy()
        self.zero_grad()


class Gradients:
    """The gradients of the batches of one run, by the settings that it was made with and changes to them."""

    def __init__(self, config: RunConfig, registry: Registry) -> None:
        self._config, self._registry = config, registry
        self._workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
        self._policy_of = assign_policies(config, tuple(self._workflow.agents))
        self._estimator = build_estimator(config, registry)
        self._loss = registry.build("losses", config.loss.use, config.loss.options)
        self._layout = BatchLayout("padded", config.train.micro_tokens)
        self._policies = [
            Policy(spec, source, copy.deepcopy(source.model), config.train, seed=config.seed)
            for spec in build_policy_specs(config, self._policy_of.values())
            for source in [load_model(spec.model, device=CPU, dtype=torch.float32)]
        ]

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(policy.name for policy in self._policies)

    def of(self, trajectories: Sequence[Trajectory], arms: Mapping[str, Any]) -> dict[str, dict[str, Float32]]:
        """The gradient of one batch by arm and policy. `arms` are shapers by name."""
        known: Experience | None = None
        found: dict[str, dict[str, Float32]] = {}
        for arm, shapers in arms.items():
            given = [compute_rewards(one, self._config.coach.reward, shapers) for one in trajectories]
            experience = build_experience(
                trajectories,
                given,
                policies=self._policy_of,
                trained=frozenset(self._policy_of.values()),
                metric=self._workflow.metric,
            )
            known = known or self._scored(experience)
            experience = replace(experience, old_logprobs=known.old_logprobs, ref_logprobs=known.ref_logprobs)
            advantages, _ = self._estimator(experience, {})
            found[arm] = {policy.name: self._gradient(policy, experience, advantages) for policy in self._policies}
        return found

    def _scored(self, experience: Experience) -> Experience:
        parts = [
            score_policy(
                policy.name,
                LogprobModel(policy.model, policy.value_head),
                policy.reference,
                experience,
                layout=self._layout,
                device=CPU,
            )
            for policy in self._policies
        ]
        return merge_scores(experience, parts)

    def _gradient(self, policy: Policy, experience: Experience, advantages: Any) -> Float32:
        learner = Still(policy, _optimiser(policy), LogprobModel(policy.model, policy.value_head))
        PolicyUpdate(learner, experience, advantages, self._loss, self._config.train, layout=self._layout).run(
            0.0, seed=0
        )
        return learner.gradient


def _optimiser(policy: Policy) -> Any:
    assert policy.optimiser is not None  # all policies of the recipe learn
    return policy.optimiser


def batches(run: Path, iterations: int) -> Iterator[list[Trajectory]]:
    """The rollouts of every iteration of a run, whole."""
    with RunReader(run) as reader:
        for iteration in range(iterations):
            rows = reader.trajectories.where(split="train", iteration=iteration)
            yield [reader.trajectory(row.id) for row in rows]


def cosines(run: Path, registry: Registry) -> Iterator[Cosines]:
    """The cosines of every agent of a run.

    Raises:
        ConfigError: hardly any batch had rollouts that were right and others that were wrong.
    """
    composed = restore_trusted(registry, run / CONFIG)
    config = composed.config
    shapers = {arm: _shapers(run, words, registry) for arm, words in ARMS.items()}
    gradients = Gradients(config, registry)
    found = [gradients.of(one, shapers) for one in batches(run, config.train.iterations)]
    for policy in gradients.policies:
        process, outcome = (np.array([batch[arm][policy] for batch in found]) for arm in ("process", "outcome"))
        tells = outcome.any(axis=1)
        if tells.sum() < 2:
            raise ConfigError(
                f"{run}: in {(~tells).sum()} of {len(outcome)} batches all outcomes are the same, so there is no "
                "gradient of the objective to compare with: play more batches (train.iterations), or larger ones "
                "(train.prompts)"
            )
        others = (outcome.sum(axis=0) - outcome) / (len(outcome) - 1)
        yield Cosines(
            agent=policy,
            seed=config.seed,
            process=float(np.nanmean(cosine(process, others)[tells])),
            outcome=float(np.nanmean(cosine(outcome, others)[tells])),
            limit=float(cosine(process.mean(axis=0), outcome.mean(axis=0))),
            halves=float(cosine(outcome[::2].mean(axis=0), outcome[1::2].mean(axis=0))),
            silent=int((~tells).sum()),
        )


def _shapers(run: Path, words: Sequence[str], registry: Registry) -> list[Any]:
    config = restore_trusted(registry, run / CONFIG, words).config
    return [registry.build("shapers", one.use, one.options) for one in config.shapers]


def cosine(one: Float32, other: Float32) -> Float32:
    """The cosine along the last axis; NaN of a gradient that is zero."""
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return np.asarray(
        np.divide((one * other).sum(axis=-1), lengths, out=np.full_like(lengths, np.nan), where=lengths > 0)
    )


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="alignment", asked=asked)
    (runs,) = study.train({"still": STILL}, asked.seeds).values()
    found = [one for run in runs for one in cosines(run, study.registry)]
    rows = [Row.of(agent, found) for agent in dict.fromkeys(one.agent for one in found)]
    click.echo(
        table(
            ("agent", "seed", "process", "outcome", "in the limit", "halves of outcome", "silent"), map(_cells, found)
        )
    )
    click.echo("\nCosine of one batch, with 95 % intervals over seeds:\n")
    click.echo(table(("agent", "process", "outcome", "process - outcome", "more, as claimed"), map(_row, rows)))
    study.finish(study.write(cells=found, claims=rows))


def _cells(one: Cosines) -> tuple[str, ...]:
    figures = (one.process, one.outcome, one.limit, one.halves)
    return one.agent, str(one.seed), *(f"{figure:.3f}" for figure in figures), str(one.silent)


def _row(row: Row) -> tuple[str, ...]:
    return row.agent, _cosine(row.process), _cosine(row.outcome), _cosine(row.more, "+.3f"), row.standing


def _cosine(one: Interval, spec: str = ".3f") -> str:
    bounds = "" if one.low is None or one.high is None else f" [{one.low:{spec}}, {one.high:{spec}}]"
    return f"{one.mean:{spec}}{bounds}"


if __name__ == "__main__":
    main()
