"""Workflow and coach of an imported run, whose actions were recorded elsewhere. The workflow only describes the agents,
so that other coaches can judge them; the coach judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mappa_core import Coach, ConfigError, NoOptions, Role, Scene, Stage, Verdict, Workflow

IMPORT_RECIPE = "imported"
"""The recipe, workflow and coach of an imported run."""


@dataclass
class ImportedOptions:
    agents: dict[str, str] = field(default_factory=dict)
    """Purpose of each agent by name, which is shown to the coach."""


class ImportedWorkflow(Workflow):
    """Describes the agents of an imported run; its metric is the outcome `correct`, if the imported log has one."""

    def __init__(self, options: ImportedOptions) -> None:
        self.agents: Mapping[str, Role] = {
            name: Role(brief=brief or "an agent of a team that was recorded elsewhere")
            for name, brief in options.agents.items()
        }

    async def run(self, stage: Stage) -> None:
        raise ConfigError(
            "workflow.use=imported plays nothing: its actions were recorded elsewhere. Look at the run with observe, "
            "judge, coach eval, view or report; to play its tasks choose another workflow"
        )


class ImportedCoach(Coach):
    """Abstains from every verdict: imported actions were not judged."""

    def __init__(self, options: NoOptions) -> None: ...

    async def score(self, scene: Scene) -> Verdict:
        return Verdict.abstained("an imported run has no coach of its own; choose one with `mappa judge RUN --coach`")
