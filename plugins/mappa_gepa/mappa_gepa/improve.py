"""Improves the prompts of a team: the search, then a report on tasks that chose nothing, all in one run folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gepa.api import optimize
from gepa.core.result import GEPAResult

from mappa.runs import Evaluation, RunFolder, build_evaluation
from mappa.sessions import (
    ComposedConfig,
    Session,
    attach_coaches,
    build_options,
    open_batches,
    open_session,
    parse_overrides,
    record_prompts,
    record_session_events,
)
from mappa.statistics import Interval
from mappa_core import ConfigError, Registry, Trajectory
from mappa_core.files import open_log
from mappa_core.transport import Provider
from mappa_gepa.adapter import TeamAdapter
from mappa_gepa.agent_choice import BlameChoice
from mappa_gepa.options import PERFECT, ImproveOptions
from mappa_gepa.parts import TaskParts, split_tasks
from mappa_gepa.proposer import Proposer
from mappa_gepa.refusals import LeakCheck, Refusal
from mappa_gepa.rollouts import CandidateRollouts, Prompts, TaskResult
from mappa_gepa.stored_search import LOG_NAME, StoredSearch, write_prompts

RESUME = "mappa improve --resume"
POLICIES = "policies"
"""The folder of a checkpoint that holds what the engine saved."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Improvement:
    """Result of a search. `before` and `after` are evaluations of the original prompts and the new ones on the report
    tasks; both are None if no candidate beat the original prompts on the tasks that choose, and so nothing changed."""

    folder: Path
    recipe: str
    """Full name of the run's recipe."""
    originals: Prompts
    prompts: Prompts
    before: Evaluation | None
    after: Evaluation | None
    chosen_on: tuple[float, float]
    """Means of original and new prompts on the tasks that chose, which favour the new ones."""
    rollouts: int
    proposals: int
    candidates: int
    refusals: Mapping[Refusal, int]
    usd: float | None

    @property
    def changed(self) -> tuple[str, ...]:
        """Agents whose prompt is another one."""
        return tuple(agent for agent, text in self.prompts.items() if text != self.originals[agent])

    @property
    def gain(self) -> Interval | None:
        """Paired gain on the report tasks with its 95 % interval; None if nothing changed."""
        return None if self.before is None or self.after is None else self.after.gain_over(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Callbacks of a search: the providers before the first call, and every rollout as it ends."""

    on_providers: Callable[[Sequence[Provider]], None] = lambda providers: None
    on_rollout: Callable[[Trajectory], None] = lambda trajectory: None


async def improve(
    composed: ComposedConfig,
    registry: Registry,
    search: StoredSearch,
    *,
    folder: Path | None = None,
    watcher: Watcher | None = None,
) -> Improvement:
    """Search for better prompts of the agents of `composed`.

    Args:
        folder: run folder of this search, which is resumed; None: a new one.

    Raises:
        ConfigError: an option is invalid, the workflow names no prompts, or a part of the tasks is too small.
        GuardStop: the spending cap is reached, or a provider or a tool failed; the search can be resumed.
    """
    composed.require_installed()
    options, watcher = search.options, watcher or Watcher()
    options.check()
    loaded = None if search.weights is None else Path(search.weights) / POLICIES
    async with open_session(composed, registry, learning=False, coach=True, loaded=loaded) as session:
        originals = _choose_prompts(session, options)
        sizes = {"propose": options.propose, "choose": options.choose, "report": options.report}
        parts = split_tasks(session.tasks("train"), **sizes)
        _check_budget(options, parts)
        if loaded is not None:
            await session.engine.load(loaded)
        async with _proposing_policy(registry, options) as policy:
            _check_price(composed, options, policy.provider)
            watcher.on_providers((*session.providers, policy.provider))
            with _open_folder(composed, search, folder) as opened, attach_coaches(opened, session):
                for usage in opened.store.paid_usages():
                    session.team.ledger.add(usage)
                open_batches([policy], composed.config.coach.cassette, opened.path)
                record_session_events(session, opened.store)
                rollouts = CandidateRollouts(
                    session, opened, samples=options.samples, resume=RESUME, on_finish=watcher.on_rollout
                )
                proposer = Proposer(
                    policy, opened, options=options, roles=session.workflow.agents, originals=originals,
                    leaks=LeakCheck(parts.all, tuple(originals.values())), is_known=rollouts.is_known,
                    ledger=session.team.ledger, seed=session.team.seed_of("proposals") % 2**31, resume=RESUME,
                )  # fmt: skip
                found = await _Search(composed.full_name, session, options, parts, rollouts, proposer).run(
                    opened, originals
                )
                _record(opened, session, found)
                return found


class _Search:
    def __init__(
        self,
        recipe: str,
        session: Session,
        options: ImproveOptions,
        parts: TaskParts,
        rollouts: CandidateRollouts,
        proposer: Proposer,
    ) -> None:
        self._recipe = recipe
        self._session = session
        self._options = options
        self._parts = parts
        self._rollouts = rollouts
        self._proposer = proposer
        self._kept, self._kept_at = 0, 0  # candidates kept, and proposals when the last one was

    async def run(self, folder: RunFolder, originals: Prompts) -> Improvement:
        adapter = TeamAdapter(
            self._rollouts,
            self._proposer,
            options=self._options,
            metric=self._session.workflow.metric,
            propose_ids=frozenset(task.id for task in self._parts.propose),
            unreasoned=self._session.team.reference_for,
            loop=asyncio.get_running_loop(),
        )
        found = await asyncio.to_thread(self._search, adapter, originals, folder.path)
        best = choose_candidate(found.candidates, found.val_aggregate_scores)
        before = after = None
        if best:
            before, after = [await self._report(prompts) for prompts in (originals, found.candidates[best])]
        return Improvement(
            folder=folder.path, recipe=self._recipe, originals=originals, prompts=found.candidates[best],
            before=before, after=after,
            chosen_on=(found.val_aggregate_scores[0], found.val_aggregate_scores[best]),
            rollouts=self._rollouts.count, proposals=len(self._proposer.proposals),
            candidates=len(found.candidates) - 1, refusals=self._proposer.refusals,
            usd=self._session.team.ledger.total_usd,
        )  # fmt: skip

    def _search(self, adapter: TeamAdapter, originals: Prompts, folder: Path) -> GEPAResult[float, int]:
        """Run the library's search in this thread. Raises the first exception of the adapter."""
        library_adapter: Any = adapter  # the protocol has an attribute where this class has a method
        choice: Any = BlameChoice(tuple(originals)) if self._options.choice == "blame" else "round_robin"
        try:
            with open_log(folder, LOG_NAME) as file:
                file.truncate(0)  # a search that goes on tells all of it again
                found: GEPAResult[float, int] = optimize(
                    seed_candidate=dict(originals),
                    trainset=list(self._parts.propose),
                    valset=list(self._parts.choose),
                    adapter=library_adapter,
                    reflection_minibatch_size=min(self._options.minibatch, len(self._parts.propose)),
                    module_selector=choice,
                    stop_callbacks=lambda state: self._is_over(adapter, state),
                    logger=_FileLogger(file),
                    perfect_score=PERFECT,
                    track_best_outputs=False,
                    seed=self._session.config.seed,
                )
        except Exception:
            if adapter.error is None:
                raise
        if adapter.error is not None:
            raise adapter.error
        return found

    def _is_over(self, adapter: TeamAdapter, state: Any) -> bool:
        """Whether the search failed, has nothing left to find, found nothing for long, or could exceed the budget: an
        iteration plays the minibatch with two candidates, and one of them on the tasks that choose. One that plays
        nothing anew counts as one rollout."""
        kept, proposals = len(state.program_candidates), len(self._proposer.proposals)
        if kept > self._kept:
            self._kept, self._kept_at = kept, proposals
        is_fruitless = proposals - self._kept_at >= self._options.patience
        is_solved = max(state.program_full_scores_val_set) >= PERFECT
        size = self._options.samples
        following = (2 * self._options.minibatch + len(self._parts.choose)) * size
        left = self._options.rollouts - 2 * len(self._parts.report) * size
        is_spent = max(self._rollouts.count, state.i) + following > left
        return adapter.error is not None or is_solved or is_fruitless or is_spent

    async def _report(self, prompts: Prompts) -> Evaluation:
        results = await self._rollouts.play(prompts, self._parts.report, "eval")
        return _evaluation(results, self._session)


def choose_candidate(candidates: Sequence[Prompts], scores: Sequence[float]) -> int:
    """Return the candidate with the best mean; among equals the shortest, then the earliest. 0 are the originals."""
    lengths = [sum(map(len, candidate.values())) for candidate in candidates]
    return max(range(len(candidates)), key=lambda index: (scores[index], index == 0, -lengths[index], -index))


def _evaluation(results: Sequence[TaskResult], session: Session) -> Evaluation:
    trajectories = [trajectory for result in results for trajectory in result.trajectories]
    workflow = session.workflow
    evaluation = build_evaluation(trajectories, metric=workflow.metric, figures=workflow.figures, iteration=0)
    return replace(evaluation, part="report")


def _choose_prompts(session: Session, options: ImproveOptions) -> dict[str, str]:
    """The prompts that may change. Raises ConfigError if there are none, or an agent of the options has none."""
    prompts, use = session.workflow.prompts, session.config.workflow.use
    if not prompts:
        raise ConfigError(f"the workflow {use} names no prompts that could be improved (Workflow.prompts)")
    for agent in options.agents:
        if agent not in prompts:
            raise ConfigError(f"--agent {agent}: {use} names no prompt of it; it names those of {', '.join(prompts)}")
    return {agent: text for agent, text in prompts.items() if not options.agents or agent in options.agents}


def _check_budget(options: ImproveOptions, parts: TaskParts) -> None:
    needed = (2 * len(parts.report) + 2 * len(parts.choose) + 2 * options.minibatch) * options.samples
    if options.rollouts < needed:
        raise ConfigError(
            f"--rollouts {options.rollouts}: a single proposal with its report takes {needed} of {len(parts.choose)} "
            f"tasks that choose and {len(parts.report)} that report; give more, or lower --choose and --report"
        )


@asynccontextmanager
async def _proposing_policy(registry: Registry, options: ImproveOptions) -> AsyncIterator[Any]:
    """Build the provider's model that proposes. Raises ConfigError or PluginError as a config with it."""
    tree = parse_overrides([f"proposer.{word}" for word in options.proposer_settings])
    chosen = build_options(registry, "policies", options.proposer, tree, "proposer")
    policy = registry.build("policies", options.proposer, chosen)
    try:
        yield policy
    finally:
        await policy.close()


def _check_price(composed: ComposedConfig, options: ImproveOptions, provider: Provider) -> None:
    cap = composed.config.coach.spend_usd
    if cap is not None and not provider.priced:
        raise ConfigError(
            f"coach.spend_usd={cap:g} cannot be kept: the price of {provider.name} ({provider.model}), which proposes, "
            "is unknown. Set proposer.price={input: …, output: …}, in US dollars per million tokens."
        )


def _open_folder(composed: ComposedConfig, search: StoredSearch, folder: Path | None) -> RunFolder:
    if folder is not None:
        opened = RunFolder.open(folder)
        opened.write_config(composed.to_yaml(), composed.code)
        return opened
    run = composed.config.run
    recipe, text = f"{composed.recipe}-improve", composed.to_yaml()
    opened = RunFolder.create(
        Path(run.root), run.name, plugin=composed.plugin, recipe=recipe, config=text, code=composed.code
    )
    search.write(opened.path)
    return opened


def _record(folder: RunFolder, session: Session, found: Improvement) -> None:
    """Record the result: its prompts are the last that the run uses."""
    record_prompts(session.with_prompts(found.prompts).team, folder.store)
    # Not as evaluations: readers find the rollouts of one by its iteration, which here is the number of a candidate.
    report = {
        name: None if evaluation is None else evaluation.to_event()
        for name, evaluation in (("before", found.before), ("after", found.after))
    }
    folder.store.record_event(
        "improvement", gain=found.gain, changed=list(found.changed), prompts=dict(found.prompts), **report
    )
    write_prompts(folder.path, found.prompts)


class _FileLogger:
    def __init__(self, file: Any) -> None:
        self._file = file

    def log(self, message: str) -> None:
        print(message, file=self._file, flush=True)
