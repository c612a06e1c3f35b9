"""Standalone evaluation of a recipe's start models, or of a checkpoint, without training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa.config.compose import ComposedConfig
from mappa.evaluation.heldout import Evaluation, evaluate
from mappa.evaluation.probe import Probe, probe_session
from mappa.rollout.resume import ResumedIteration
from mappa.session import attach_coaches, create_folder_for, open_session, record_session_events
from mappa.store.checkpoint import POLICIES, Checkpoint
from mappa_core.plugins import Registry
from mappa_core.protocols import Provider
from mappa_core.records import Role, Sandbox, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneEvaluation:
    """An evaluation, the run folder with its trajectories, the roles of the agents, and what a probe found, if asked
    for."""

    folder: Path
    evaluation: Evaluation
    roles: Mapping[str, Role]
    probe: Probe | None = None


async def evaluate_standalone(
    composed: ComposedConfig,
    registry: Registry,
    *,
    purpose: str = "eval",
    probing: bool = False,
    checkpoint: Checkpoint | None = None,
    on_trajectory: Callable[[Trajectory], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_providers: Callable[[Sequence[Provider]], None] | None = None,
    on_sandboxes: Callable[[Mapping[str, Sandbox]], None] | None = None,
) -> StandaloneEvaluation:
    """Play and grade the tasks of `eval.split` with the weights of `checkpoint` (None: the start models of the recipe),
    in a run folder of its own, named with the suffix `purpose`. Tasks on which `checkpoint.best` selects the best
    checkpoint are left out, as in the run. With `probing` it is also measured what can be learned from them.

    Before the first trajectory `on_start` is called with the number of trajectories, `on_providers` with all providers
    that data will be sent to, and `on_sandboxes` with the sandboxes of the tools. Raises GuardStop if every trajectory
    was lost to tool failures; the folder holds them.
    """
    composed.require_installed()
    config = composed.config
    async with open_session(
        composed,
        registry,
        learning=False,
        coach=config.eval.coach,
        loaded=None if checkpoint is None else checkpoint.path / POLICIES,
    ) as session:
        parts = session.held_out()
        if on_providers is not None:
            on_providers(session.providers)
        if on_sandboxes is not None:
            on_sandboxes(session.sandboxes)
        iteration = 0
        if checkpoint is not None:
            await session.engine.load(checkpoint.path / POLICIES)
            iteration = checkpoint.manifest.iteration
        if on_start is not None:
            on_start(len(parts.report) * config.eval.samples)
        folder = create_folder_for(composed, purpose=purpose, name=config.run.name)
        with folder, attach_coaches(folder, session):
            record_session_events(session, folder.store)
            evaluation, trajectories = await evaluate(
                session,
                recorder=folder.store,
                archive=folder.files,
                iteration=iteration,
                tasks=parts.report,
                resumed=ResumedIteration(),
                max_lost=1.0,
                part=parts.part,
                on_trajectory=on_trajectory,
            )
            folder.store.record_event("evaluation", **evaluation.to_event())
        return StandaloneEvaluation(
            folder=folder.path,
            evaluation=evaluation,
            roles=session.workflow.agents,
            probe=probe_session(session, evaluation, trajectories) if probing else None,
        )
