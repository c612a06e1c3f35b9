"""The small model: what it is shown, how it is read, and the folder that is shipped."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import mappa_mathchat
from mappa_core import Message, RunError
from mappa_engine.tiny.supervised_trainer import Imitator, encode
from mappa_mathchat.extract_answer import extract_final_answer
from mappa_mathchat.plans import parse_plan
from mappa_mathchat.tiny.demonstrations import NO_FAULTS, Demonstrations, FaultProbabilities
from mappa_mathchat.tiny.warm_start import WARM_START, warm_start
from mappa_mathchat.word_problems import fingerprint_text
from mappa_mathchat.workflow import MathChat, MathChatOptions

SHIPPED = Path(mappa_mathchat.__file__).parent / "models" / "tiny"
OPENINGS = ("Plan: ", "Code: ", "Box: ")


def demonstrated(
    habits: FaultProbabilities, count: int, seed: object = 0
) -> tuple[list[list[Message]], Demonstrations]:
    demonstrator = Demonstrations(MathChat(MathChatOptions(prompts="tiny")), habits, Random(f"{seed}/test"))
    return list(islice(demonstrator.conversations(), count)), demonstrator


@pytest.fixture(scope="module")
def tokenizer():  # type: ignore[no-untyped-def]
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SHIPPED)


def test_no_held_out_problem_is_demonstrated() -> None:
    _, demonstrator = demonstrated(FaultProbabilities(), 6000)
    assert len(demonstrator.problem_texts) > 1900
    assert all(fingerprint_text(text) % 10 for text in demonstrator.problem_texts)


def test_the_same_seed_gives_the_same_demonstrations() -> None:
    assert demonstrated(FaultProbabilities(), 300)[0] == demonstrated(FaultProbabilities(), 300)[0]
    assert demonstrated(FaultProbabilities(), 300)[0] != demonstrated(FaultProbabilities(), 300, seed=1)[0]


def test_faultless_demonstrations_are_right() -> None:
    conversations, _ = demonstrated(NO_FAULTS, 300)
    for solver, coder, verifier in zip(*[iter(conversations)] * 3, strict=True):
        plan = parse_plan(solver[1].content)
        assert plan is not None and len(coder) == 2
        assert extract_final_answer(verifier[1].content) == str(plan.value)
        assert f"output: {plan.value}" in verifier[0].content


def test_faulty_demonstrations_open_like_the_workflow_and_are_mostly_wrong() -> None:
    conversations, _ = demonstrated(FaultProbabilities(), 3000)
    assert [talk[0].content.split(" ")[0] + " " for talk in conversations] == list(OPENINGS) * 1000
    assert all(
        [message.role for message in talk[:4]] in (["user", "assistant"], ["user", "assistant"] * 2)
        for talk in conversations
    )
    coders = conversations[1::3]
    assert 0.4 < sum(len(talk) == 4 for talk in coders) / len(coders) < 0.7
    faithful = sum(
        f"output: {extract_final_answer(talk[1].content)}" == talk[0].content.splitlines()[-1]
        for talk in conversations[2::3]
    )
    assert faithful / len(coders) < 0.45


@given(st.text())
def test_the_tokenizer_is_lossless(tokenizer, text: str) -> None:  # type: ignore[no-untyped-def]
    text = text.encode("utf-8", "ignore").decode()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token(tokenizer) -> None:  # type: ignore[no-untyped-def]
    assert tokenizer.tokenize("x=384") == ["x", "=", "3", "8", "4"]
    assert len(tokenizer) == 384


def test_demonstrations_are_encoded_as_the_template_renders_them(tokenizer) -> None:  # type: ignore[no-untyped-def]
    for talk in demonstrated(FaultProbabilities(), 60)[0]:
        encoded = encode(tokenizer, talk)
        messages = [{"role": message.role, "content": message.content} for message in talk]
        assert encoded.tokens == tokenizer.apply_chat_template(messages, return_dict=False)
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        assert encoded.tokens[: len(prompt)] == prompt
        assert encoded.loss_mask[len(prompt) - 1 :] == [False] + [True] * (len(encoded.tokens) - len(prompt))
        assert encoded.tokens[-1] == tokenizer.eos_token_id


def test_the_second_turn_extends_the_first_token_by_token(tokenizer) -> None:  # type: ignore[no-untyped-def]
    talk = next(talk for talk in demonstrated(FaultProbabilities(), 60)[0] if len(talk) == 4)
    messages = [{"role": message.role, "content": message.content} for message in talk]
    first, again = (
        tokenizer.apply_chat_template(messages[:count], add_generation_prompt=True, return_dict=False)
        for count in (1, 3)
    )
    action = [*tokenizer.encode(messages[1]["content"], add_special_tokens=False), tokenizer.eos_token_id]
    assert again[: len(first) + len(action)] == [*first, *action]


def test_the_shipped_model_loads_and_is_small(tokenizer) -> None:  # type: ignore[no-untyped-def]
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    untaught = Imitator(tokenizer.backend_tokenizer, window=WARM_START.window, seed=0, shape=WARM_START.shape)
    assert model.num_parameters() == untaught.model.num_parameters() < 300_000
    assert model.config.head_dim == 32
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 2_000_000


def test_the_shipped_model_was_built_with_these_habits() -> None:
    manifest = json.loads((SHIPPED / "manifest.json").read_text())
    assert manifest["habits"] == json.loads(json.dumps(asdict(FaultProbabilities())))
    assert manifest["problems"] > 10_000


def test_warm_start_builds_the_same_folder_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        result = CliRunner().invoke(warm_start, [str(tmp_path / name), "--steps", "2"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_warm_start_leaves_a_folder_that_holds_something_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    result = CliRunner().invoke(warm_start, [str(tmp_path), "--steps", "1"])
    assert "is not empty" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_warm_start_looks_at_its_folder_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = CliRunner().invoke(warm_start, [str(tmp_path / "file" / "model"), "--steps", "1"])
    assert isinstance(result.exception, RunError)
    assert "a part of this path is a file" in str(result.exception)
    assert result.output == ""
