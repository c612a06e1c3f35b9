"""Former keys of settings are read for one release, and warn."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.config.compose import build_options, compose, restore
from mappa.config.renames import RenamedSettingWarning
from mappa.config.resume_diff import check_resume_changes, diff_configs
from mappa.config.yaml_io import parse_overrides
from mappa_core.errors import ConfigError
from mappa_core.plugins import load_plugins

OLD_RUN = Path(__file__).parents[1] / "fixtures" / "run_0_1_0"

OFFERS = """
from dataclasses import dataclass, field
from mappa_core import Use

@dataclass
class Inner:
    max_points: float = field(default=5.0, metadata={"former_key": "most"})

@dataclass
class One:
    max_points: float = field(default=5.0, metadata={"former_key": "most"})
    inner: Inner = field(default_factory=Inner)

@dataclass
class Pair:
    parts: list[Use] = field(default_factory=list, metadata={"former_key": "members"})

@hookimpl
def mappa_coaches():
    yield Offer("one", lambda options: options, One)
    yield Offer("pair", lambda options, make: options, Pair, composite=True)
"""


@pytest.fixture
def registry(acme):
    acme.write("offers", OFFERS)
    return load_plugins()


def test_a_former_key_sets_the_new_one_and_the_warning_names_both_and_the_place(registry, write):
    file = write("more.yaml", "seed: 1\ncoach: {use: one, options: {most: 2}}\n")
    with pytest.warns(RenamedSettingWarning) as warned:
        composed = compose(registry, "acme", config_files=[file], overrides=["train.max_lost=0.5"])
    assert composed.config.coach.options.max_points == 2
    assert composed.origins["coach.options.max_points"] == f"{file}:2"
    assert composed.config.train.max_tool_failure_share == 0.5
    said = "\n".join(str(one.message) for one in warned)
    assert f"coach.options.most is now coach.options.max_points (set by {file}:2)" in said
    assert "train.max_lost is now train.max_tool_failure_share (set by command line)" in said
    assert "most:" not in composed.to_yaml() and "max_lost" not in composed.to_yaml()


def test_layers_keep_their_order_whichever_key_they_use(registry, write):
    old, new = write("old.yaml", "train: {max_lost: 0.2}"), write("new.yaml", "train: {max_tool_failure_share: 0.1}")
    with pytest.warns(RenamedSettingWarning):
        assert compose(registry, "acme", config_files=[old, new]).config.train.max_tool_failure_share == 0.1
    with pytest.warns(RenamedSettingWarning):
        assert compose(registry, "acme", config_files=[new, old]).config.train.max_tool_failure_share == 0.2


def test_mappings_merge_whichever_key_they_are_given_by(registry, write):
    file = write("more.yaml", "credit: {counterfactual: {default_actions: {a: one, b: one}}}")
    with pytest.warns(RenamedSettingWarning):
        words = ["credit.counterfactual.texts.b=two"]
        composed = compose(registry, "acme", config_files=[file], overrides=words)
    assert composed.config.credit.counterfactual.default_actions == {"a": "one", "b": "two"}


def test_both_keys_in_one_layer_are_an_error(registry):
    with pytest.raises(ConfigError, match=r"train\.max_tool_failure_share .* given as train\.max_lost too"):
        compose(registry, "acme", overrides=["train.max_lost=0.1", "train.max_tool_failure_share=0.2"])


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["coach.use=one", "coach.options.most=7"], lambda coach: coach.options.max_points),
        (["coach.use=one", "coach.options.inner.most=7"], lambda coach: coach.options.inner.max_points),
        (
            ["coach.use=pair", "coach.options.members=[{use: one, options: {most: 7}}]"],
            lambda coach: coach.options.parts[0].options.max_points,
        ),
        (["coach.by_agent.a={use: one, options: {most: 7}}"], lambda coach: coach.by_agent["a"].options.max_points),
    ],
)
def test_options_of_offers_have_former_keys_at_any_depth(registry, words, value):
    with pytest.warns(RenamedSettingWarning):
        assert value(compose(registry, "acme", overrides=words).config.coach) == 7


def test_options_outside_a_config_have_them_too(registry):
    with pytest.warns(RenamedSettingWarning, match=r"judge\.most is now judge\.max_points"):
        options = build_options(registry, "coaches", "one", parse_overrides(["judge.most=7"]), "judge")
    assert options.max_points == 7


def test_the_config_of_a_run_of_0_1_0_is_read_and_resumes_without_a_change(tmp_path):
    stored = tmp_path / "config.yaml"
    shutil.copy(OLD_RUN / "config.yaml", stored)
    registry = load_plugins()
    with pytest.warns(RenamedSettingWarning) as warned:
        before = restore(registry, stored)
        now = restore(registry, stored, ["train.max_lost=0.5"])
    line = stored.read_text().splitlines().index("      cage: auto                               # default") + 1
    said = "\n".join(str(one.message) for one in warned)
    assert f"tools.python.options.cage is now tools.python.options.sandbox (set by {stored}:{line})" in said
    assert before.origins["tools.python.options.sandbox"] == "default"
    assert {change.key for change in diff_configs(before, now)} == {"train.max_tool_failure_share"}
    assert "without settings that are gone" in said and "coach.strata, coach.bias, coach.drift" in said
    assert "strata" not in before.to_yaml()
    check_resume_changes(before, now)
    again = tmp_path / "again.yaml"
    again.write_text(now.to_yaml())
    assert diff_configs(now, restore(registry, again)) == ()


def test_a_run_of_0_1_0_resumes(tmp_path):
    run = tmp_path / "old"
    subprocess.run([sys.executable, OLD_RUN / "build.py", run], check=True)
    assert main(["train", "--resume", str(run), "train.iterations=3", "train.max_lost=0.5"]) == 0


@pytest.mark.parametrize("word", ["coach.bias.correct=true", "coach.drift.level=pause", "coach.strata=[task]"])
def test_a_setting_that_is_gone_is_refused_with_what_to_use_instead(acme, capsys, word):
    assert main(["config", "--plugin", "acme", word]) == 2
    printed = capsys.readouterr()
    key = ".".join(word.partition("=")[0].split(".")[:2])
    assert f"{key}: not a setting any more: the coach bias_corrected of mappa-calibration" in printed.err
    assert "(set by command line)" in printed.err and "Traceback" not in printed.err


def test_the_command_line_prints_the_warning_as_one(acme, capsys):
    assert main(["config", "--plugin", "acme", "train.max_lost=0.2"]) == 0
    printed = capsys.readouterr()
    assert "Warning: settings have new names" in printed.err and "train.max_lost is now" in printed.err
    assert "renames.py" not in printed.err and "max_lost" not in printed.out
