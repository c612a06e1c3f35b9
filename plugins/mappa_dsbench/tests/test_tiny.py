"""The small model: what it is shown, whether that is true of real tables, how it is read, and the folder that is
shipped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import mappa_dsbench
from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core import Message, ToolCall
from mappa_dsbench.embedded.catalogue import tasks_of_split
from mappa_dsbench.embedded.facts import load_facts
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, ROLES
from mappa_dsbench.tiny.demonstrations import Demonstrations
from mappa_dsbench.tiny.names import PIECES, could_be_held_out
from mappa_dsbench.tiny.planted_faults import (
    FAULT_PLANTERS,
    NO_FAULTS,
    FaultProbabilities,
    draw_sound_program,
    plant_faults,
)
from mappa_dsbench.tiny.predict_outcome import predict_outcome
from mappa_dsbench.tiny.programs import line_tokens
from mappa_dsbench.tiny.synthetic_tables import draw_task
from mappa_dsbench.tiny.tokenizer import prompt_tokens
from mappa_dsbench.tiny.warm_start import WARM_START, warm_start
from mappa_engine.tiny.supervised_trainer import Imitator, encode

from .tiny_programs import Job, Ran, Table, graded, played, run

EVERY_FILE = sorted(path for role in ROLES.values() for path in role.produces)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SHIPPED)


SHIPPED = Path(mappa_dsbench.__file__).parent / "models" / "tiny"

TABLES = {
    "chances": ("iris", "roc_auc"),
    "a probability": ("breast", "log_loss"),
    "labels": ("modechoice", "accuracy"),
    "levels": ("anes96", "qwk"),
    "words": ("barley", "rmse"),
    "gaps and words": ("txhousing", "rmsle"),
    "two targets": ("meat", "mean_rmsle"),
    "held out, three targets": ("penguins", "mean_rmsle"),
}
"""Embedded tasks by what is particular about them."""

SOFT = {
    "id_kept": "X_train.pkl id_inside",
    "refit": "X_test.pkl refit_on_test",
    "gaps_dropped": "X_train.pkl rows_dropped",
    "labels_for_scores": "hard",
    "weak": "worse",
    "wrong_side": "worse",
}
"""Habits that agents are not told of: what the contract calls them, or that they score worse."""
RUN = [(agent, fault) for agent in ROLES for fault in FAULT_PLANTERS[agent] if fault != "unfenced"]


def demonstrated(habits: FaultProbabilities, count: int, seed: object = 0) -> list[list[Message]]:
    return list(islice(Demonstrations(habits, Random(f"{seed}/test")).conversations(), count))


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    found = {
        (one.dataset, one.recipe.metric): one for one in (*tasks_of_split("training"), *tasks_of_split("held_out"))
    }
    return [Table(found[which]) for which in TABLES.values()]


@pytest.fixture(scope="module")
def team(tables, tmp_path_factory) -> dict[str, list[Ran]]:  # type: ignore[no-untyped-def]
    return played(tables, Random(0), tmp_path_factory.mktemp("team"))


@pytest.fixture(scope="module")
def faulty(tables, team, tmp_path_factory) -> dict[tuple[str, str], list[tuple[Job, Ran]]]:  # type: ignore[no-untyped-def]
    """Every fault but one on two tables on which it is possible, after faultless predecessors."""
    before = {DATA_ENGINEER: None, MODELER: DATA_ENGINEER, ANALYST: MODELER}
    rng = Random(1)
    jobs = []
    for agent, fault in RUN:
        possible = []
        for place, table in enumerate(tables):
            good = draw_sound_program(agent, table.drawn, rng)
            bad = plant_faults(agent, good, [fault], table.drawn)
            # Gaps among categories are none once these are columns.
            real = table.gaps or fault not in ("gaps_left", "refit")
            if bad != good and real:
                previous = before[agent]
                after = None if previous is None else team[previous][place].folder
                possible.append(((agent, fault), Job(agent, bad, table, after)))
        jobs += rng.sample(possible, min(2, len(possible)))
    found: dict[tuple[str, str], list[tuple[Job, Ran]]] = {}
    for (key, job), ran in zip(jobs, run([job for _, job in jobs], tmp_path_factory.mktemp("faulty")), strict=True):
        found.setdefault(key, []).append((job, ran))
    return found


@pytest.mark.slow
def test_faultless_programs_are_graded_as_successes_on_real_tables(tables, team) -> None:  # type: ignore[no-untyped-def]
    for agent in ROLES:
        assert [(ran.result, ran.codes) for ran in team[agent]] == [("ok", ())] * len(tables)
    grades = [graded(table, ran.folder) for table, ran in zip(tables, team[ANALYST], strict=True)]
    assert all(one.success and one.normalised > 0.05 for one in grades)
    assert {table.drawn.problem.kind for table in tables} == {"classification", "regression"}


@pytest.mark.parametrize("agent, fault", RUN)
def test_a_fault_leads_to_what_agents_are_told(faulty, agent: str, fault: str) -> None:  # type: ignore[no-untyped-def]
    for job, ran in faulty[agent, fault]:
        expected = predict_outcome(agent, job.program, job.table.drawn, EVERY_FILE)
        missing = [f"{path} missing" for path in ROLES[agent].produces if path not in ran.files]
        found = missing or [code for code in ran.codes if code != SOFT.get(fault)]
        assert (ran.result, tuple(found)) == (expected.result, expected.unmet), job.program.text(
            job.table.drawn.problem
        )


@pytest.mark.parametrize("agent, fault", RUN)
def test_no_fault_is_without_a_consequence(tables, team, faulty, agent: str, fault: str) -> None:  # type: ignore[no-untyped-def]
    for job, ran in faulty[agent, fault]:
        if predict_outcome(agent, job.program, job.table.drawn, EVERY_FILE).unmet:
            continue
        assert fault in SOFT
        if agent == DATA_ENGINEER:
            assert SOFT[fault] in ran.codes
        elif agent == ANALYST:
            good = graded(job.table, team[ANALYST][tables.index(job.table)].folder)
            assert graded(job.table, ran.folder).normalised < good.normalised - 0.05


@pytest.mark.parametrize("agent", ROLES)
def test_a_program_in_no_fence_is_not_run(programs_in: Callable[[str], tuple[ToolCall, ...]], agent: str) -> None:
    drawn = draw_task(Random(0))
    good = draw_sound_program(agent, drawn, Random(0))
    bad = plant_faults(agent, good, ["unfenced"], drawn)
    for program, count in ((good, 1), (bad, 0)):
        assert len(programs_in(program.text(drawn.problem))) == count
    assert predict_outcome(agent, bad, drawn, EVERY_FILE).result is None


def test_fault_without_a_consequence_is_never_planted() -> None:
    rng = Random(0)
    for _ in range(300):
        drawn = draw_task(rng)
        for agent, faults in FAULT_PLANTERS.items():
            good = draw_sound_program(agent, drawn, rng)
            assert not predict_outcome(agent, good, drawn, EVERY_FILE).unmet
            for fault in faults:
                bad = plant_faults(agent, good, [fault], drawn)
                if bad != good and fault not in SOFT:
                    assert predict_outcome(agent, bad, drawn, EVERY_FILE).unmet, (fault, bad)


def test_no_name_that_a_held_out_table_has_is_demonstrated() -> None:
    names = {
        name
        for one in tasks_of_split("held_out")
        for name in (*load_facts()[one.name].table.features, load_facts()[one.name].table.problem.id_column)
    }
    assert len(names) > 100
    assert all(could_be_held_out(name) for name in names)
    rng = Random(0)
    drawn = [draw_task(rng).problem for _ in range(3000)]
    shown = {name for problem in drawn for name in (problem.id_column, *problem.targets)}
    assert len(shown) > 4000
    assert not any(could_be_held_out(name) for name in shown)
    assert all(any(piece in name for name in shown) for piece in PIECES)


def test_every_metric_that_a_program_can_serve_is_demonstrated() -> None:
    rng = Random(0)
    drawn = [draw_task(rng) for _ in range(2000)]
    assert {one.problem.metric for one in drawn} >= {load_facts()[one].table.problem.metric for one in load_facts()}
    assert {len(one.problem.targets) for one in drawn if one.problem.metric == "mcrmse"} == {1, 2, 3}


def test_the_same_seed_gives_the_same_demonstrations() -> None:
    assert demonstrated(FaultProbabilities(), 300) == demonstrated(FaultProbabilities(), 300)
    assert demonstrated(FaultProbabilities(), 300) != demonstrated(FaultProbabilities(), 300, seed=1)


def test_faultless_demonstrations_are_over_in_one_turn() -> None:
    assert all(len(talk) == 2 and talk[1].content.endswith("```\nDONE") for talk in demonstrated(NO_FAULTS, 300))


def test_demonstrations_are_mostly_faulty_and_of_many_kinds() -> None:
    talks = demonstrated(FaultProbabilities(), 3000)
    assert [talk[0].content.split(":")[0] for talk in talks] == ["engineer", "modeler", "analyst"] * 1000
    for place in range(3):
        again = [talk for talk in talks[place::3] if len(talk) == 4]
        assert 0.5 < len(again) / 1000 < 0.95
        kept = [talk for talk in again if talk[1] == talk[3]]
        assert 0.2 < len(kept) / len(again) < 0.8
        programs = {re.sub(r'"[^"\n]*"(?=[\]:,])', "NAME", talk[1].content) for talk in talks[place::3]}
        assert len(programs) >= 60


@given(st.text())
def test_the_tokenizer_is_lossless(tokenizer, text: str) -> None:  # type: ignore[no-untyped-def]
    text = text.encode("utf-8", "ignore").decode()
    assert decoded(tokenizer, text) == text


def decoded(tokenizer: Any, text: str) -> str:
    return str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False))


def test_the_tokenizer_is_lossless_on_programs_of_any_kind(tokenizer) -> None:  # type: ignore[no-untyped-def]
    for path in sorted(Path(mappa_dsbench.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert decoded(tokenizer, text) == text


def test_a_demonstration_is_a_few_dozen_tokens(tokenizer) -> None:  # type: ignore[no-untyped-def]
    lengths: dict[str, list[int]] = {agent: [] for agent in ROLES}
    for agent, talk in zip(cycle(ROLES), demonstrated(FaultProbabilities(), 900), strict=False):
        for message in talk:
            assert decoded(tokenizer, message.content) == message.content
            lengths[agent].append(len(tokenizer.encode(message.content, add_special_tokens=False)))
    config = compose(load_plugins(only=("look", "dsbench", "engine", "sandbox")), "dsbench", "tiny").config
    for agent, found in lengths.items():
        assert max(found) < config.agents[agent].max_tokens
        assert sum(found) / len(found) < 20


def test_every_line_and_every_piece_of_a_name_is_one_token(tokenizer) -> None:  # type: ignore[no-untyped-def]
    for text in (*line_tokens(), *prompt_tokens(), *PIECES):
        assert len(tokenizer.encode(text, add_special_tokens=False)) == 1, text


def test_demonstrations_are_encoded_as_the_template_renders_them(tokenizer) -> None:  # type: ignore[no-untyped-def]
    for talk in demonstrated(FaultProbabilities(), 60):
        encoded = encode(tokenizer, talk)
        messages = [{"role": message.role, "content": message.content} for message in talk]
        assert encoded.tokens == tokenizer.apply_chat_template(messages, return_dict=False)
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        assert encoded.tokens[: len(prompt)] == prompt
        assert encoded.loss_mask[len(prompt) - 1 :] == [False] + [True] * (len(encoded.tokens) - len(prompt))
        assert encoded.tokens[-1] == tokenizer.eos_token_id


def test_the_shipped_model_loads_and_is_small(tokenizer) -> None:  # type: ignore[no-untyped-def]
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    untaught = Imitator(tokenizer.backend_tokenizer, window=WARM_START.window, seed=0, shape=WARM_START.shape)
    assert model.num_parameters() == untaught.model.num_parameters() < 350_000
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 2_000_000


def test_the_shipped_model_was_built_with_these_habits() -> None:
    manifest = json.loads((SHIPPED / "manifest.json").read_text())
    assert manifest["habits"] == asdict(FaultProbabilities())


def test_warm_start_builds_the_same_folder_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        result = CliRunner().invoke(warm_start, [str(tmp_path / name), "--steps", "2"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
    built, shipped = (json.loads((folder / "tokenizer.json").read_text()) for folder in (tmp_path / "one", SHIPPED))
    assert built["model"]["vocab"] == shipped["model"]["vocab"]
    assert built["added_tokens"] == shipped["added_tokens"]


def test_warm_start_leaves_a_folder_that_holds_something_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    result = CliRunner().invoke(warm_start, [str(tmp_path), "--steps", "1"])
    assert "is not empty" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
