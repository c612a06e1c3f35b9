"""Evaluate a recipe's start models, or a checkpoint of a run, without training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa_core.config.compose import Composed
from mappa_core.evaluation.heldout import Evaluation, evaluate
from mappa_core.plugins import Registry
from mappa_core.protocols import Provider
from mappa_core.records import Role, Sandbox, Trajectory
from mappa_core.rollout.resuming import Resumed
from mappa_core.session import coaches_in, keep_opened, open_session
from mappa_core.store.checkpoint import POLICIES, Checkpoint
from mappa_core.store.folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation, the run folder that holds its trajectories, and the roles of the agents that played."""

    folder: Path
    evaluation: Evaluation
    roles: Mapping[str, Role]


async def evaluate_once(
    composed: Composed,
    registry: Registry,
    *,
    purpose: str = "eval",
    checkpoint: Checkpoint | None = None,
    finished: Callable[[Trajectory], None] | None = None,
    starting: Callable[[int], None] | None = None,
    asking: Callable[[Sequence[Provider]], None] | None = None,
    sandboxed: Callable[[Mapping[str, Sandbox]], None] | None = None,
) -> Evaluated:
    """Play and grade the tasks of `eval.split`, into a run folder of its own. Those that `checkpoint.best` chooses the
    best checkpoint on are left out, as in the run.

    Args:
        purpose: ends the name of the folder.
        checkpoint: weights to load; None: the start models of the recipe.
        finished: called with every finished trajectory; `starting` with their number, `asking` with everyone to whom
            data will be sent, and `sandboxed` with where the tools run programs, before.

    Raises:
        GuardStop: tools lost every trajectory; the folder holds them.
    """
    composed.require_installed()
    config = composed.config
    async with open_session(
        composed, registry, learning=False, coach=config.eval.coach, fresh=checkpoint is None
    ) as session:
        parts = session.held_out()
        tasks, part = parts.report, parts.part
        if asking is not None:
            asking(session.providers)
        if sandboxed is not None:
            sandboxed(session.sandboxes)
        iteration = 0
        if checkpoint is not None:
            await session.engine.load(checkpoint.path / POLICIES)
            iteration = checkpoint.manifest.iteration
        if starting is not None:
            starting(len(tasks) * config.eval.samples)
        with _folder(composed, purpose) as folder, coaches_in(folder, session):
            keep_opened(session, folder.store)
            evaluation = await evaluate(
                session,
                recorder=folder.store,
                archive=folder.files,
                iteration=iteration,
                tasks=tasks,
                resumed=Resumed(),
                most_lost=1.0,
                part=part,
                finished=finished,
            )
            folder.store.event("evaluation", **evaluation.told())
        return Evaluated(folder=folder.path, evaluation=evaluation, roles=session.workflow.agents)


def _folder(composed: Composed, purpose: str) -> RunFolder:
    run = composed.config.run
    recipe = f"{composed.recipe}-{purpose}"
    return RunFolder.create(Path(run.root), run.name, plugin=composed.plugin, recipe=recipe, config=composed.yaml())
