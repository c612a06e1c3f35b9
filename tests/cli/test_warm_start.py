"""`mappa warm-start`: what its options and settings say together."""

from __future__ import annotations

import pytest

from mappa.cli import main


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
