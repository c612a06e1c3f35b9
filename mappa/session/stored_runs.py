"""What judging a run that has ended needs: its scenes as its coaches saw them, and a coach on its cassette."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mappa.rollout.named_coach import NamedCoach
from mappa.rollout.scenes import hindsight_scenes, live_scenes, with_truth
from mappa.session.builder import check_prices
from mappa.session.runtime import attach_cassette, open_batches
from mappa.session.source_tasks import SourceTasks
from mappa.session.toolset import build_tools
from mappa_core.config.agent_names import check_agent_names
from mappa_core.config.schema import RunConfig
from mappa_core.plugins import Registry
from mappa_core.protocols import Bench, Coach, Workflow
from mappa_core.records import Role, Scene, Task, Trajectory
from mappa_core.tools.parse_calls import PYTHON
from mappa_core.tools.retry import RETRY_AFTER_S
from mappa_core.tools.scratch import ScratchRunner


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedScenes:
    """Scenes of the stored trajectories of a run, of what it recorded alone: nothing of the run is built. The workflow
    that describes the truth is not there, so a coach that may see the truth is shown the reference as it is."""

    agents: Mapping[str, Role]
    metric: str
    reference_for: Collection[str]
    """Agents whose coach may see the truth."""

    def find_task(self, recorded: Task, split: str) -> Task:
        """Return the task to judge by in place of a recorded one of a trajectory that is stored under `split`."""
        return recorded

    def live(self, trajectory: Trajectory) -> tuple[Scene, ...]:
        """Scenes of all steps as their coaches saw them live, in order."""
        return live_scenes(trajectory, self.agents, reference_for=self.reference_for)

    def hindsight(self, trajectory: Trajectory) -> tuple[Scene, ...]:
        """Scenes of all steps with the later ones and the outcome; none for a trajectory that failed."""
        if trajectory.error is not None:
            return ()
        return hindsight_scenes(trajectory, self.agents, metric=self.metric, reference_for=self.reference_for)

    async def with_truth(self, scene: Scene) -> Scene:
        """Add the workflow's description of the truth to `scene`, if its coach may see it."""
        return scene


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredScenes(RecordedScenes):
    """Scenes with the truth as the workflow describes it. `bench` runs programs on the files that the run keeps, and
    `tasks` finds the files that it was given."""

    workflow: Workflow
    bench: Bench
    tasks: SourceTasks

    @classmethod
    def of(cls, workflow: Workflow, bench: Bench, config: RunConfig, tasks: SourceTasks) -> StoredScenes:
        """The scenes of runs of a workflow with this config."""
        return cls(
            agents=workflow.agents,
            metric=workflow.metric,
            reference_for=config.coach.reference_for,
            workflow=workflow,
            bench=bench,
            tasks=tasks,
        )

    def find_task(self, recorded: Task, split: str) -> Task:
        """Return the task of the run's source. Raises as `SourceTasks.find`."""
        return self.tasks.find(recorded, split)

    async def with_truth(self, scene: Scene) -> Scene:
        return await with_truth(scene, self.workflow, self.bench)


@asynccontextmanager
async def open_stored_scenes(config: RunConfig, registry: Registry, files: Path) -> AsyncIterator[StoredScenes]:
    """Build the workflow of a run, and a runner of programs on its `files` with the run's own tool `python`, which
    starts with the first program. Raises ConfigError or PluginError if one cannot be built."""
    chosen = {name: section for name, section in config.tools.items() if name == PYTHON}
    async with AsyncExitStack() as stack:
        workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
        stack.push_async_callback(workflow.close)
        check_agent_names(config.workflow.use, workflow.agents)
        own = await build_tools(replace(config, tools=chosen), registry, stack)
        bench = ScratchRunner(own.tools, own.limits, own.retries, wait_s=RETRY_AFTER_S, archive=files)
        tasks = SourceTasks(config, workflow, lambda: registry.build("tasks", config.tasks.use, config.tasks.options))
        yield StoredScenes.of(workflow, bench, config, tasks)


@asynccontextmanager
async def open_coach(config: RunConfig, registry: Registry, folder: Path, bench: Bench) -> AsyncIterator[NamedCoach]:
    """Build the coach that the section `coach` names, for a run in `folder`, on the cassette that it names.

    Raises ConfigError or PluginError if it cannot be built, or its price is unknown and `coach.spend_usd` set, and
    RunError as `attach_cassette`.
    """
    coach: Coach = registry.build("coaches", config.coach.use, config.coach.options)
    try:
        check_prices(config, coach.providers)
        coach.set_bench(bench)
        open_batches([coach], config.coach.cassette, folder)
        with attach_cassette([coach], config.coach.cassette, folder):
            yield NamedCoach(name=config.coach.use, coach=coach)
    finally:
        await coach.close()
