"""Every sample of the page on counterfactual credit composes, and its plan and its certificate are printed."""

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from mappa.cli import main
from mappa.sessions import compose
from mappa.testing import load_plugins

PAGE = (Path(__file__).parents[2] / "docs" / "counterfactual.md").read_text()
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]  # fmt: skip
RECIPES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def settings(words):
    return [word for word in words if "=" in word]


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[1] == "train"], ids=" ".join)
def test_settings_of_the_page_are_there(words):
    config = compose(load_plugins(), recipe="mathchat/tiny", overrides=settings(words)).config
    assert config.credit.counterfactual.use == "resample"


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_of_the_page_compose(recipe, tmp_path):
    path = tmp_path / "part.yaml"
    path.write_text(recipe)
    config = compose(load_plugins(), recipe="mathchat/tiny", config_files=[path]).config
    assert [one.use for one in config.shapers] == ["scale", "difference"]
    assert config.shapers[1].options.process_weight == 0.3


def test_the_plan_of_the_page_shows_what_is_added(capsys):
    (words,) = (words for words in COMMANDS if words[1] == "plan")
    assert main(words[1:]) == 0
    assert "replayed" in capsys.readouterr().out


def test_the_certificate_of_the_page_is_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(COMMANDS[-1][1:]) == 2
    assert "runs/weighed is not a run folder" in capsys.readouterr().err


def test_reasons_and_replacements_of_the_page_are_those_of_the_code():
    from mappa.look.coach_eval.blame import NOT_ACTED
    from mappa_core.config.schema import Replacement

    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(get_args(Replacement)) - {"none"}
    assert NOT_ACTED in PAGE
