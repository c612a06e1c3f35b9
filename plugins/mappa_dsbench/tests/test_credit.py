"""Whom the coach and the chain of broken contracts blame: real programs, some with a fault, are played, and those that
come after a fault are run again on reference artifacts.

The large experiment plays every kind of fault (`faults`) in many ways on embedded tasks; it runs under `make soak`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mappa.testing import play
from mappa_core import NOBODY, Bench, CoachError, NoOptions, Scene, ToolLimits, Trajectory, Verdict
from mappa_core.sandbox import ProgramRun
from mappa_dsbench.coach.reference_rerun import ReferenceRerunner
from mappa_dsbench.coach.rule_coach import RuleCoach
from mappa_dsbench.contracts import inspect_files
from mappa_dsbench.embedded.tasks import EmbeddedTasks
from mappa_dsbench.options import EmbeddedOptions, TeamOptions
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, ROLES
from mappa_dsbench.workflow import DSBench
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

from .credit import ENOUGH, named, played, right, told, variants
from .faults import written
from .tables import Made, made

pytestmark = pytest.mark.asyncio(loop_scope="module")
PRELOAD = ["pandas", "joblib", "sklearn.ensemble", "sklearn.linear_model", "sklearn.compose", "sklearn.pipeline"]
SEED = 20
VARIANTS = 25
"""Of each kind of fault, in the large experiment."""


class Table:
    """One task, the tool, and an archive for all plays of this module."""

    def __init__(self, pens: Made, tool: PythonTool, archive: Path, build_bench: Callable[..., Bench]) -> None:
        self.task, self.tool, self.archive = pens.task, tool, archive
        self.bench = build_bench(tool, ToolLimits(), archive)

    def program(self, name: str) -> str:
        return written(name, self.task)

    async def play(self, *replies: str, turns: int = 1) -> Trajectory:
        trajectory = await play(
            DSBench(TeamOptions(turns=turns, prompts="tiny")),
            self.task,
            replies,
            tools={"python": self.tool},
            coach=RuleCoach(NoOptions()),
            reference_for=(MODELER,),
            archive=self.archive,
        )
        assert trajectory.error is None, trajectory.error
        return trajectory


def verdicts(trajectory: Trajectory) -> list[Verdict]:
    by_step = {verdict.step: verdict for verdict in trajectory.verdicts}
    return [by_step[step.id] for step in trajectory.steps]


def done(program: str) -> str:
    return f"```python\n{program}```\nDONE"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def table(tmp_path_factory: pytest.TempPathFactory, build_bench: Callable[..., Bench]) -> AsyncIterator[Table]:
    tool = PythonTool(PythonOptions(preload=PRELOAD, workers=2))
    pens, archive = made(tmp_path_factory.mktemp("pens") / "task", "rmse"), tmp_path_factory.mktemp("archive")
    yield Table(pens, tool, archive, build_bench)
    await tool.close()


async def test_a_modeler_keeps_what_it_would_have_got_on_good_features(table: Table) -> None:
    engineer = table.program("engineer_dummies")
    good = done(table.program("modeler_forest"))
    analyst = done(table.program("analyst_frame"))
    as_it_is = verdicts(await table.play(done(engineer), good, analyst))
    broken = verdicts(await table.play(done(engineer.replace('"X_test.pkl"', '"test.pkl"')), good, analyst))
    assert [one.blame for one in as_it_is] == [NOBODY] * 3
    assert broken[1].score == pytest.approx(as_it_is[1].score, abs=0.5) and broken[2].score == 10
    assert broken[0].score == 3 and {one.blame for one in broken} == {DATA_ENGINEER}
    assert "X_test.pkl missing" in broken[1].reasoning and "reference artifacts" in broken[1].reasoning


async def test_agents_own_fault_is_found_despite_an_earlier_fault(table: Table) -> None:
    engineer = table.program("engineer_dummies").replace('"X_test.pkl"', '"test.pkl"')
    modeler = table.program("modeler_forest").replace("dump(model,", "dump(model.get_params(),")
    found = verdicts(await table.play(done(engineer), done(modeler), done(table.program("analyst_frame"))))
    assert [one.blame for one in found] == [DATA_ENGINEER, MODELER, DATA_ENGINEER]
    assert [one.score for one in found] == [3, 3, 10]


async def test_all_turns_are_run_again_in_their_order(table: Table) -> None:
    """The first turn fits a model, the second one gives the file that the first one left its right name."""
    engineer = table.program("engineer_dummies").replace('X_train.to_pickle("X_train.pkl")\n', "")
    first = table.program("modeler_forest").replace("model.pkl", "fitted.pkl")
    second = 'import shutil\nshutil.copy("fitted.pkl", "model.pkl")\n'
    found = await table.play(
        done(engineer),
        done(engineer),
        f"```python\n{first}```",
        done(second),
        *[done(table.program("analyst_frame"))] * 2,
        turns=2,
    )
    assert [step.agent for step in found.steps] == [DATA_ENGINEER] * 2 + [MODELER] * 2 + [ANALYST] * 2
    scores = [verdict.score for verdict in verdicts(found)]
    assert scores[2] == 2, "on good features the first turn leaves no model.pkl either"
    assert scores[3] > 6 and verdicts(found)[3].blame == DATA_ENGINEER


async def test_agent_that_deletes_an_input_of_the_next_agent_is_blamed(table: Table) -> None:
    modeler = table.program("modeler_forest") + 'Path("X_test.pkl").unlink()\n'
    found = verdicts(
        await table.play(done(table.program("engineer_dummies")), done(modeler), done(table.program("analyst_frame")))
    )
    assert (found[2].score, found[2].blame) == (10, MODELER)


async def test_a_target_in_other_words_is_no_fault(table: Table) -> None:
    engineer = table.program("engineer_dummies").replace('train["ink"]', 'train["ink"].map(__import__("math").log1p)')
    analyst = table.program("analyst_frame").replace(
        "model.predict(X_test)", '__import__("numpy").expm1(model.predict(X_test))'
    )
    found = verdicts(await table.play(done(engineer), done(table.program("modeler_linear")), done(analyst)))
    assert [one.blame for one in found] == [NOBODY] * 3
    assert found[1].score > 7, found[1].reasoning


async def test_uninspected_files_are_inspected_by_the_coach(table: Table) -> None:
    """An agent with turns left that does not say that it is done."""
    engineer = table.program("engineer_dummies")
    leaky = engineer.replace('[*["ink"], "pen_id"]', '["pen_id"]')
    found = await table.play(f"```python\n{leaky}```", done(engineer), *["no"] * 4, turns=2)
    assert not found.steps[0].inspection.facts["probed"]
    assert [verdict.score for verdict in verdicts(found)][:2] == [4, 10]


class Counting:
    """A bench that counts its runs."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self.runs = bench, 0
        self.files = bench.files

    async def run(self, code: str, **rest: Any) -> ProgramRun:
        self.runs += 1
        return await self._bench.run(code, **rest)

    async def verdicts_on(self, trajectory: Trajectory, place: int) -> list[tuple[Verdict, int]]:
        """What one coach says twice of an action of the Modeler, and how many programs it ran for that."""
        coach, found = RuleCoach(NoOptions()), []
        coach.set_bench(self)
        step = trajectory.steps[place]
        scene = Scene(
            task=trajectory.task, role=ROLES[step.agent], step=step, team=ROLES, earlier=trajectory.steps[:place]
        )
        for _ in range(2):
            before = self.runs
            found.append((await coach.score(scene), self.runs - before))
        return found


async def test_reference_artifacts_are_made_once_for_a_task_and_are_not_the_teams(table: Table) -> None:
    engineer = table.program("engineer_dummies").replace('"X_test.pkl"', '"test.pkl"')
    found = await table.play(done(engineer), done(table.program("modeler_forest")), "no")
    (first, all_runs), (second, fewer) = await Counting(table.bench).verdicts_on(found, 1)
    assert first == second and first.blame == DATA_ENGINEER
    assert all_runs - fewer == 2  # the features and the model
    assert not any("X_test.pkl" in step.files for step in found.steps)


@pytest.mark.parametrize(
    ("metric", "targets"),
    [("roc_auc", ["ink"]), ("accuracy", ["ink"]), ("qwk", ["ink"]), ("rmsle", ["ink"]), ("mcrmse", ["ink", "nib"])],
)
async def test_reference_artifacts_keep_their_contracts(
    table: Table, tmp_path: Path, metric: str, targets: list[str]
) -> None:
    pens = made(tmp_path / "task", metric, targets=tuple(targets))
    files = await ReferenceRerunner(table.bench).artifacts(pens.task)
    for agent in (DATA_ENGINEER, MODELER):
        assert (await inspect_files(agent, pens.task, files, table.bench))["faults"] == []


async def test_a_reference_program_that_fails_is_told(table: Table, tmp_path: Path) -> None:
    pens = made(tmp_path / "task", "rmse")
    pens.train.rename(columns={"ink": "colour"}).to_csv(tmp_path / "task" / "train.csv", index=False)
    with pytest.raises(CoachError, match=r"features\.py failed: KeyError: \['ink'\]"):
        await ReferenceRerunner(table.bench).artifacts(pens.task)


# Credit


@pytest.mark.slow
async def test_one_fault_of_each_kind_is_put_down_to_who_made_it(table: Table, tmp_path: Path) -> None:
    tasks = [made(tmp_path / metric / "task", metric, name=metric).task for metric in ("roc_auc", "accuracy", "rmse")]
    found = await played(variants(tasks, 1, SEED), table.tool, tmp_path)
    assert all(right(one) for one in found), told(found)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_faults_are_put_down_to_who_made_them(table: Table, tmp_path: Path) -> None:
    tasks = EmbeddedTasks(EmbeddedOptions(folder=str(tmp_path / "tables"), eval=1)).load("train")
    found = await played(variants(tasks, VARIANTS, SEED), table.tool, tmp_path / "archive")
    print(told(found))
    assert len({one.play.task.id for one in found}) >= 8 and len({one.play.task.stratum for one in found}) == 2
    faulty = [one for one in found if one.play.guilty is not None]
    for pairs in named(faulty):
        assert sum(who == one.play.guilty for one, who in pairs) >= 0.95 * len(faulty)
    kept = [score for one in faulty for score in one.downstream]
    assert sum(score >= ENOUGH for score in kept) >= 0.95 * len(kept)
