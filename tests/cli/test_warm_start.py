"""`mappa warm-start`: what its options and settings say together."""

from __future__ import annotations

import json

import pytest

from mappa.cli import main
from mappa.runs import RunReader


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--epochs", "1", "train.iterations=20"), "--epochs 1 contradicts train.iterations=20"),
        (("--epochs", "3", "train={iterations: 20}"), "--epochs 3 contradicts train.iterations=20"),
        (("--batch-size", "4", "train.minibatch_rows=null"), "--batch-size 4 contradicts train.minibatch_rows=None"),
        (("--learning-rate", "1e-4", "train.learning_rate=0.01"), "--learning-rate 0.0001 contradicts train.learning"),
        (("--name", "a", "run.name=b"), "--name a contradicts run.name=b"),
    ],
)
def test_an_option_and_its_setting_may_not_differ(tmp_path, capsys, words, message):
    assert main(["warm-start", "--plugin", "mathchat", "--examples", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("train.iterations=20", "train.minibatch_rows=4", "train.learning_rate=0.01", "run.name=b"),
        ("--epochs", "20", "train.iterations=20"),
        ("--learning-rate", "1e-4", "train.learning_rate=0.0001"),
        ("--name", "3", "run.name=3"),
    ],
)
def test_an_option_may_be_left_out_or_said_twice(tmp_path, capsys, words):
    assert main(["warm-start", "--plugin", "mathchat", "--examples", str(tmp_path), *words]) != 0
    told = capsys.readouterr().err
    assert str(tmp_path) in told and "contradicts" not in told, "the folder has no examples"


def write_examples(folder):
    examples = [
        {"prompt": [{"role": "user", "content": f"plan: 3 + {number}"}],
         "completion": [{"role": "assistant", "content": f"the answer is {3 + number}"}]}
        for number in range(4)
    ]  # fmt: skip
    file = folder / "verifier.jsonl"
    file.write_text("\n".join(map(json.dumps, examples)))
    return str(file)


@pytest.mark.parametrize("word", ["train.correction.kind=mask", "train.correction.geometric_high=1.5"])
def test_corrections_of_what_nobody_sampled_are_refused(tmp_path, capsys, word):
    words = ("--plugin", "mathchat", "--examples", write_examples(tmp_path), f"run.root={tmp_path}", word)
    assert main(["warm-start", *words]) == 2
    told = capsys.readouterr().err
    assert word in told and "none would be learned from" in told
    assert [path.name for path in tmp_path.iterdir()] == ["verifier.jsonl"]


OF_A_TRAINING = """
train:
  epochs: 3
  mean: sequence
  entropy_coef: 0.5
  correction: {kind: truncate, geometric_low: 0.9, geometric_high: 1.1}
"""


def test_what_a_config_says_of_the_loss_of_a_training_is_not_used(tmp_path, monkeypatch):
    """The loss is -log p as a mean over the tokens of a step, and an epoch is one pass, whatever a training is to do
    with what was sampled: with nothing sampled, its bounds on ratios would leave no example to learn from."""
    monkeypatch.chdir(tmp_path)
    write_examples(tmp_path)
    (tmp_path / "training.yaml").write_text(OF_A_TRAINING)
    learned = []
    for name, words in (("plain", ()), ("config", ("--config", "training.yaml"))):
        words = ("--plugin", "mathchat", "--examples", "verifier.jsonl", "--name", name, *words)
        assert main(["warm-start", *words, "--epochs", "1", "--batch-size", "2", "--quiet", "eval.problems=1"]) == 0
        with RunReader(tmp_path / "runs" / name) as reader:
            learned.append(next(iter(reader.iterations)).policies["verifier"])
    assert learned[0]["grad_norm"] > 0.0
    assert learned[1] == learned[0]
