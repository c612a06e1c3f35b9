"""A warm start: the policies of a team learn from examples, and become what a training starts from.

It is a run like others, of which an iteration is an epoch: a pass over the examples. In place of rollouts it has rows
of reward 1, and its loss is -log p, so it uses the learners, checkpoints and evaluations of any run, on every engine.
Of the checkpoints it keeps the one that the held-out examples surprise least, and it stops when that was `PATIENCE`
epochs ago.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
from structlog.contextvars import bound_contextvars

from mappa.config.compose import ComposedConfig
from mappa.session import Session, open_session
from mappa.store.checkpoint import POLICIES, BestCheckpoint
from mappa.store.folder import RunFolder
from mappa.store.iteration_report import IterationReport
from mappa.training.examples import (
    Example,
    Examples,
    TokenizedExample,
    build_examples_experience,
    hold_out,
    read_examples,
    tokenize,
)
from mappa.training.guards import guard_disk, max_new_checkpoints
from mappa.training.listener import Listener
from mappa.training.loop import TrainingLoop
from mappa.training.phase_timer import PhaseTimer
from mappa.training.run import Run
from mappa.training.tracker_threads import TrackerThreads
from mappa_core.codec import from_json, to_json
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.files import has_file, read_text, write_file
from mappa_core.plugins import Registry

EXAMPLES = "examples.jsonl"
"""File in the folder of a warm start with all its examples: a resume needs nothing else."""
MAX_EXAMPLES_BYTES = 1 << 30
PATIENCE = 2
HELD_OUT_LOSS = "held_out_loss"
_METRICS = ("loss", "grad_norm", "lr", "rows", "tokens", "steps", "skipped")
"""Those of the engine that say something where nothing was sampled."""


def is_warm_start(folder: Path) -> bool:
    """Whether a run folder is that of a warm start."""
    return has_file(folder, EXAMPLES)


class WarmStart(Run):
    """A warm start whose config is composed and checked; `examples` None: those of the `folder` that is resumed. Raises
    ConfigError if `train.correction` leaves none to learn from."""

    def __init__(
        self,
        composed: ComposedConfig,
        registry: Registry,
        *,
        folder: Path | None = None,
        examples: Sequence[Example] | None = None,
    ) -> None:
        super().__init__(composed, registry, folder=folder)
        _check_uncorrected(composed)
        self._examples = _read_recorded(folder) if examples is None and folder is not None else tuple(examples or ())

    def _session(self) -> AbstractAsyncContextManager[Session]:
        return open_session(self._started(), self._registry, learning=True, coach=False, loaded=self._loaded())

    def _loop(self, session: Session, folder: RunFolder, listener: Listener, tracking: TrackerThreads) -> TrainingLoop:
        if not is_warm_start(folder.path):
            lines = b"\n".join(to_json(example) for example in self._examples)
            write_file(folder.path, EXAMPLES, lines + b"\n")
        return WarmStartLoop(session, self._examples, folder=folder, listener=listener, tracking=tracking)


def _check_uncorrected(composed: ComposedConfig) -> None:
    """Raise ConfigError where ratios to a sampler are corrected: all are unknown, so every example would weigh 0."""
    correction = composed.config.train.correction
    wanted = {"kind": "none", "geometric_low": None, "geometric_high": None}
    wrong = [name for name, value in wanted.items() if getattr(correction, name) != value]
    if wrong:
        words = " ".join(f"train.correction.{name}={wanted[name] or 'null'}" for name in wrong)
        raise ConfigError(
            composed.tell_origins(
                f"train.correction.{wrong[0]}={getattr(correction, wrong[0])}: nothing sampled the examples, so there "
                f"is nothing to correct, and none would be learned from; set {words}"
            )
        )


def _read_recorded(folder: Path) -> tuple[Example, ...]:
    lines = read_text(folder, EXAMPLES, max_bytes=MAX_EXAMPLES_BYTES).splitlines()
    return tuple(from_json(Example, line) for line in lines)


def read_team_examples(
    composed: ComposedConfig, registry: Registry, sources: Sequence[Path], only: Sequence[str]
) -> Examples:
    """Read the examples of a config's team. Raises as `read_examples`."""
    chosen = composed.config.workflow
    return read_examples(sources, tuple(registry.build("workflows", chosen.use, chosen.options).agents), only)


def imitation_loss(new_logprobs: Any, rows: Any, advantages: Any) -> tuple[Any, Mapping[str, Any]]:
    """-log p of every token of the examples: a `Loss` whose mean over tokens is that of supervised fine-tuning."""
    return -new_logprobs, {}


class WarmStartLoop(TrainingLoop):
    """Trains the policies of a session on examples, from the last checkpoint in `folder`, or from the start."""

    def __init__(
        self,
        session: Session,
        examples: Sequence[Example],
        *,
        folder: RunFolder,
        listener: Listener,
        tracking: TrackerThreads,
    ) -> None:
        super().__init__(session, folder=folder, listener=listener, tracking=tracking)
        self._learned, self._held_out = (self._tokenize(part) for part in hold_out(examples))
        if not self._learned:
            raise ConfigError("none of the examples can be learned from: see why above")

    def _tokenize(self, examples: Sequence[Example]) -> tuple[TokenizedExample, ...]:
        team, left_out = self._session.team, Counter[tuple[str, str]]()
        for agent in dict.fromkeys(example.agent for example in examples):
            if team.policy_of[agent] not in self._session.trained_policies:
                raise ConfigError(
                    f"{agent} plays by the policy {team.policy_of[agent]}, which is not trained: leave its examples "
                    "out, or make the policy `full` or `lora`"
                )
        max_tokens = {agent: sampling.max_tokens for agent, sampling in team.sampling.items()}
        tokenized = tokenize(examples, lambda agent: team.samplers[team.policy_of[agent]], max_tokens, left_out)
        for (agent, reason), count in left_out.items():
            self._store.record_event("examples_left_out", agent=agent, reason=reason, count=count)
            self._listener.on_examples_left_out(agent, reason, count)
        return tokenized

    async def run(self) -> None:
        """Evaluate, learn until the held-out loss falls no longer, go back to the best epoch, evaluate again."""
        config, start = self._session.config, await self._restore()
        existing = len(self._folder.checkpoints.iterations())
        guard_disk(self._folder.path, self._session, checkpoints=max_new_checkpoints(config, start, existing=existing))
        self._record_processes()
        await self._evaluate(0, recorded_only=start > 0)
        if start == 0:
            self._listener.on_held_out_losses(0, await self._held_out_losses())
        losses = [_mean_held_out(report.policies) for report in self._store.iterations()[:start]]
        # A kill may have come between the checkpoint and the record that it is the best.
        await self._keep_least(losses)
        for done in range(start, config.train.iterations):
            if _stopped_falling(losses):
                break
            with bound_contextvars(iteration=done + 1):
                report = await self._learn(done)
                losses.append(_mean_held_out(report.policies))
                self._store.record_iteration(report)
                self._tracking.log(report.iteration, report.metrics())
                self._listener.on_iteration_end(report)
                self._listener.on_held_out_losses(done + 1, _held_out(report.policies))
                async with self._checkpoint_on_stop(done + 1):
                    self._skipped_steps.guard(done + 1, report.policies)
                await self._checkpoint(done + 1)
                await self._checkpoint_written(done + 1)
                self._record_memory(done + 1)
                await self._keep_least(losses)
        await self._evaluate_best()

    async def _learn(self, done: int) -> IterationReport:
        """Learn from all examples once; the report says how much the held-out ones surprise each policy then."""
        engine, iterations = self._session.engine, self._session.config.train.iterations
        clock = PhaseTimer(done, self._listener)
        with clock.phase("update"):
            learned = build_examples_experience(self._learned, self._session.team.policy_of)
            advantages = Advantages(advantages=np.ones(len(learned.tokens), np.float32))
            metrics = await engine.update(learned, advantages, imitation_loss, progress=done / iterations)
        with clock.phase("publish"):
            receipts = await engine.publish()
        self._store.record_event("published", iteration=done + 1, receipts=receipts)
        with clock.phase("score"):
            surprise = await self._held_out_losses()
        self._skipped_steps.save(done + 1, metrics, learned, advantages)
        kept = {policy: {name: each[name] for name in _METRICS if name in each} for policy, each in metrics.items()}
        surprised = {policy: {HELD_OUT_LOSS: loss} for policy, loss in surprise.items()}
        return IterationReport(
            iteration=done + 1,
            tokens=len(learned.tokens),
            policies={policy: {**each, **surprised.get(policy, {})} for policy, each in kept.items()},
            seconds=clock.seconds,
        )

    async def _held_out_losses(self) -> Mapping[str, float]:
        """Mean -log p over the tokens of the held-out examples, in nats, by policy."""
        if not self._held_out:
            return {}
        given = build_examples_experience(self._held_out, self._session.team.policy_of)
        scored = await self._session.engine.score(given, reference=False)
        return {policy: _surprise(scored, number) for number, policy in enumerate(scored.policies)}

    async def _keep_least(self, losses: Sequence[float | None]) -> None:
        """Keep the last checkpoint as the best, unless an earlier one has as small a held-out loss, or it has none."""
        *earlier, last = [math.inf if loss is None or math.isnan(loss) else loss for loss in losses or (None,)]
        kept = self._folder.checkpoints.best()
        if not last < min(earlier, default=math.inf) or (kept is not None and kept.iteration == len(losses)):
            return
        best = BestCheckpoint(iteration=len(losses), metric=HELD_OUT_LOSS, value=last)
        self._folder.checkpoints.keep_best(best)
        self._store.record_event("best", iteration=best.iteration, metric=best.metric, value=best.value)

    async def _evaluate_best(self) -> None:
        """Play the held-out tasks with the weights that a training will start from."""
        checkpoints = self._folder.checkpoints
        best, last = checkpoints.best(), checkpoints.latest_iteration()
        chosen = last if best is None else best.iteration
        if chosen is None:
            return
        if chosen != last:
            checkpoint = checkpoints.load(chosen)
            await self._session.engine.load(checkpoint.path / POLICIES)
        for part in self.evaluations.parts:
            await self.evaluations.evaluate(part, chosen)


def _surprise(scored: Experience, policy: int) -> float:
    assert scored.old_logprobs is not None
    return float(-scored.old_logprobs[scored.policy[scored.row_of_token] == policy].astype(np.float64).mean())


def _held_out(policies: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
    return {policy: metrics[HELD_OUT_LOSS] for policy, metrics in policies.items() if HELD_OUT_LOSS in metrics}


def _mean_held_out(policies: Mapping[str, Mapping[str, float]]) -> float | None:
    """The mean of the policies' held-out losses; None if no example is held out."""
    losses = list(_held_out(policies).values())
    return sum(losses) / len(losses) if losses else None


def _stopped_falling(losses: Sequence[float | None]) -> bool:
    known = [math.inf if math.isnan(loss) else loss for loss in losses if loss is not None]
    return len(known) > PATIENCE and min(known[-PATIENCE:]) >= min(known[:-PATIENCE])
