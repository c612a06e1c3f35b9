"""The commands of the page on comparing do what it says."""

import re
import shlex
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.sessions import Run
from mappa.testing import load_plugins

PAGE = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def named(word):
    found = [shlex.split(command)[1:] for command in COMMANDS if command.startswith(f"mappa {word}")]
    assert found
    return found


@pytest.fixture(scope="module")
def here(module_site, tmp_path_factory):
    """The runs that the page compares."""
    module_site.install("acme_doubles")
    folder = tmp_path_factory.mktemp("here")
    for name, words in (("strict", ()), ("moody", ("coach.use=moody",))):
        for seed in (0, 1):
            place = (f"run.root={folder / 'runs'}", f"run.name={name}{seed}", f"seed={seed}", "train.iterations=1")
            Run.from_recipe(
                "doubles/tiny", *place, *words, registry=load_plugins(only=("look", "doubles", "engine", "sandbox"))
            ).train()
    return folder


@pytest.mark.parametrize("words", named("compare"), ids=" ".join)
def test_a_comparison_of_the_page_says_what_is_found(words, here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    assert main(words) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert ("cannot be told" if "--arm" in words else "no significant difference") in told


def test_the_sweep_of_the_page_begins_and_goes_on(tmp_path, monkeypatch, capsys):
    asked = []

    async def launch(arguments, log):
        asked.append((log.stem, arguments))
        log.write_text("Error: nobody trains in this test\n")
        return 2

    monkeypatch.setattr("mappa.look.sweep.launch_locally", launch)
    monkeypatch.chdir(tmp_path)
    for words in (words for words in named("sweep") if "--ray" not in words):
        assert main(words) == 2
        assert "failed: Error: nobody trains in this test" in capsys.readouterr().err
    assert [folder for folder, _ in asked] == ["arm1-s0", "arm1-s1", "arm2-s0", "arm2-s1"] * 2
    assert "train.learning_rate=0.0002" in asked[0][1] and "train.iterations=20" not in asked[0][1]
    assert "iterations: 20" in Path("sweep/config.yaml").read_text()
    assert {path.name for path in Path("sweep").iterdir()} >= {"sweep.json", "sweep.html", "logs"}


def test_the_sweeps_of_the_page_on_rewards_have_the_arms_that_it_names(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs/how-to/process-or-outcome.md"
    text = page.read_text()
    typed = [shlex.split(line)[1:] for line in re.findall(r"^ *(mappa sweep .*--arms.*)$", text, re.MULTILINE)]
    asked = []

    async def launch(arguments, log):
        asked.append((log.stem, arguments))
        log.touch()
        return 2

    monkeypatch.setattr("mappa.look.sweep.launch_locally", launch)
    monkeypatch.chdir(tmp_path)
    (both,) = re.findall(r'```yaml title="both.yaml"\n(.*?)```', text, re.DOTALL)
    Path("both.yaml").write_text(both)
    for words in typed:
        assert main(words) == 2
    names = [folder for folder, _ in asked]
    first, rates, files = names[:6], names[6:24], names[24:]
    assert first == [f"{arm}-s{seed}" for arm in ("process", "outcome") for seed in range(3)]
    assert len(set(rates)) == 18 and rates[0] == "process-1-s0" and rates[-1] == "outcome-3-s2"
    assert files[-3:] == ["both-s0", "both-s1", "both-s2"]
    arguments = dict(asked[:6])
    assert "shapers=[{use: outcome}]" in arguments["outcome-s0"]
    assert "shapers=[{use: scale}]" in arguments["process-s0"]


def test_the_evaluation_of_the_page_shows_several_samples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (words,) = named("eval")
    assert main(words) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if re.fullmatch(r"(pass|avg|majority)@2 [\d.]+% fair, [\d.]+% raw", line)]
    assert len(re.findall(r"@2 ", out)) == 3
