"""Stored configs: reading one back, and what a resumed run may change."""

from __future__ import annotations

import pytest

from mappa.config.compose import compose, read_stored
from mappa.config.resume_diff import check_resume_changes, diff_configs
from mappa.testing import load_plugins
from mappa_core import ConfigError, PluginError, RunError


@pytest.fixture
def registry(acme):
    return load_plugins()


@pytest.fixture
def stored(registry, write):
    """A run's config.yaml, of a command line that changed something."""
    return write(
        "config.yaml", compose(registry, "acme", overrides=["train.epochs=3", 'coach.options.model="1e-6"']).to_yaml()
    )


def restore(registry, stored, words=()):
    return read_stored(stored).resolve(registry, words)


def same(one, other) -> bool:
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("config", "document", "origins", "full_name", "missing_offers")
    )


def test_a_stored_config_reads_back_with_values_types_origins_and_hash(registry, stored):
    was = compose(registry, "acme", overrides=["train.epochs=3", 'coach.options.model="1e-6"'])
    back = restore(registry, stored)
    assert same(back, was)
    assert back.config.coach.options.model == "1e-6"
    assert back.origins["train.epochs"] == "command line"
    assert back.recipe_hash == was.recipe_hash


def test_stored_config_with_an_uninstalled_offer_is_read(registry, write):
    was = compose(registry, "acme", "paper", overrides=["tasks.options.path=x"])
    assert same(restore(registry, write("config.yaml", was.to_yaml())), was)


def test_a_stored_config_does_not_ask_the_recipe_again(registry, stored, write):
    lines = [line for line in stored.read_text().splitlines(keepends=True) if "learning_rate" not in line]
    assert restore(registry, write("other.yaml", "".join(lines))).config.train.learning_rate == 1e-6


def test_words_are_laid_over_a_stored_config(registry, stored):
    now = restore(registry, stored, ["train.iterations=50"])
    assert now.config.train.iterations == 50
    assert now.origins["train.iterations"] == "command line"


def test_a_mistake_in_a_stored_config_names_its_line(registry, stored, write):
    lines = stored.read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if "iterations: 2" in line)
    lines[number] = "  iterations: two"
    broken = write("broken.yaml", "\n".join(lines))
    with pytest.raises(ConfigError, match=rf"train.iterations: 'two' .* \(set by .*broken.yaml:{number + 1}\)"):
        restore(registry, broken)


def test_a_file_that_is_no_stored_config_is_refused(registry, write):
    with pytest.raises(ConfigError, match="not the config of a run: it has no line `recipe: plugin/recipe`"):
        restore(registry, write("mine.yaml", "seed: 1\n"))


def test_folder_that_is_no_run_is_an_error_that_names_a_run_inside(registry, stored):
    folder = stored.parent
    inside = folder / "runs" / "first"
    for named in (folder / "none", folder / "none" / "config.yaml"):
        with pytest.raises(RunError, match=rf"^{folder}/none is not a run folder: it has no config.yaml$"):
            restore(registry, named)
    inside.mkdir(parents=True)
    (inside / "config.yaml").write_text(stored.read_text())
    with pytest.raises(RunError, match=rf"{folder}/runs is not a run folder, it holds some: .* such as {inside}$"):
        restore(registry, folder / "runs")


def test_a_stored_config_whose_plugin_is_gone_names_the_plugin(stored):
    with pytest.raises(PluginError, match="no plugin is called 'acme'"):
        restore(load_plugins(block=["acme"]), stored)


def test_a_stored_config_among_config_files_names_the_recipe(registry, stored):
    again = compose(registry, config_files=[stored], overrides=["seed=4"])
    assert (again.full_name, again.config.train.epochs, again.config.seed) == ("acme/tiny", 3, 4)
    with pytest.raises(ConfigError, match="belongs to recipe acme/tiny, and plugin 'other' was asked for"):
        compose(registry, "other", config_files=[stored])


def test_equal_configs_have_no_differences(registry):
    assert diff_configs(compose(registry, "acme"), compose(registry, "acme")) == ()


def test_difference_names_key_both_values_and_origin(registry):
    words = ["train.learning_rate=0.1", "agents.solo.max_tokens=5", "shapers=[]"]
    changes = diff_configs(compose(registry, "acme"), compose(registry, "acme", overrides=words))
    assert [str(change) for change in changes] == [
        "shapers.0.use: 'acme_scale' -> None (no longer set)",
        "shapers.0.options.low: 0.0 -> None (no longer set)",
        "shapers.0.options.high: 10.0 -> None (no longer set)",
        "train.learning_rate: 0.001 -> 0.1 (command line)",
        "agents.solo.max_tokens: None -> 5 (command line)",
    ]


@pytest.mark.parametrize(
    "word",
    [
        "train.iterations=99",
        "run.name=other",
        "trackers=[{use: acme_tracker}]",
        "coach.timeout_s=9",
        "coach.max_missing=1",
        "train.max_tool_failure_share=1",
        "tools.echo.retries=5",
    ],
)
def test_resumed_run_may_change_settings_without_effect_on_recorded_results(registry, stored, word):
    check_resume_changes(restore(registry, stored), restore(registry, stored, [word]))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_whose_learning_rate_falls_keeps_its_length(registry, write, schedule):
    """Its rate would jump: half-way through 10 iterations it is half of what it was, and of 20 three quarters."""
    words = ["train.iterations=10", f"train.schedule={schedule}"]
    stored = write("config.yaml", compose(registry, "acme", overrides=words).to_yaml())
    longer = ["train.iterations=20", "train.learning_rate=0.5"]
    with pytest.raises(ConfigError, match=rf"(?s)train.learning_rate.*train.schedule={schedule}.*from=RUN@last") as no:
        check_resume_changes(restore(registry, stored), restore(registry, stored, longer))
    assert "  train.iterations: 10 -> 20 (command line)" in str(no.value), "all that differs is named at once"
    check_resume_changes(restore(registry, stored), restore(registry, stored, ["run.name=other"]))


def test_a_resumed_run_may_be_on_other_machines(registry, write):
    """A job of Slurm, or a Ray that was started again, has another address, and perhaps other GPUs."""
    before = ["engine.use=cluster", "engine.options.address=10.0.0.1:6379"]
    stored = write("config.yaml", compose(registry, "acme", overrides=before).to_yaml())
    moved = ["address=10.0.0.7:6379", "learner_ranks=4", "zero=3", "start_s=900"]
    words = ["engine.use=cluster", *(f"engine.options.{word}" for word in moved)]
    check_resume_changes(restore(registry, stored), restore(registry, stored, words))
    with pytest.raises(ConfigError, match=r"engine\.options\.max_model_len: None -> 512"):
        check_resume_changes(restore(registry, stored), restore(registry, stored, ["engine.options.max_model_len=512"]))


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("seed=9", "seed: 0 -> 9 (command line)"),
        ("tools.echo.limits.wall_s=9", "tools.echo.limits.wall_s: 5.0 -> 9.0 (command line)"),
        ("train.learning_rate=0.5", "train.learning_rate: 0.001 -> 0.5 (command line)"),
        ("coach.options.model=other", "coach.options.model: '1e-6' -> 'other' (command line)"),
    ],
)
def test_other_changed_settings_of_a_resumed_run_are_refused_with_the_difference(registry, stored, word, line):
    with pytest.raises(ConfigError) as caught:
        check_resume_changes(restore(registry, stored), restore(registry, stored, [word, "train.iterations=99"]))
    assert line in str(caught.value)
    assert "train.iterations: " not in str(caught.value)
