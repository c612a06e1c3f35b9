"""Composing a config: order of layers, types, origins, and what is said about every mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mappa.config.compose import compose
from mappa.testing import load_plugins
from mappa_core import ConfigError, NoOptions, PluginError
from mappa_core.config.schema import RunConfig


@pytest.fixture
def registry(acme):
    return load_plugins()


@pytest.fixture
def tiny(registry):
    """Compose `acme/tiny` with these words and files."""

    def compose_tiny(*words, files=()):
        return compose(registry, "acme", config_files=files, overrides=words)

    return compose_tiny


def refusal(compose_it, *words, **others) -> str:
    with pytest.raises((ConfigError, PluginError)) as caught:
        compose_it(*words, **others)
    return str(caught.value)


# --- layers -----------------------------------------------------------------------------------------------------------


def test_the_default_recipe_is_tiny_and_its_values_are_typed(tiny):
    composed = tiny()
    assert (composed.plugin, composed.recipe, composed.full_name) == ("acme", "tiny", "acme/tiny")
    assert isinstance(composed.config, RunConfig)
    assert composed.config.train.learning_rate == 1e-3
    assert composed.config.train.betas == (0.9, 0.95)
    assert composed.config.tools["echo"].limits.wall_s == 5.0


def test_options_become_the_dataclass_of_the_offer(tiny, registry):
    config = tiny().config
    assert type(config.coach.options) is registry.offer("coaches", "acme_coach").options
    assert [(member.use, member.weight) for member in config.coach.options.members] == [("rules", 1.0), ("acme-1", 0.5)]
    assert type(config.shapers[0].options).__name__ == "ScaleOptions"
    assert config.engine.options == NoOptions()


def test_later_layers_win_and_every_value_knows_its_origin(tiny, write):
    low = write("low.yaml", "train: {iterations: 7}\nseed: 1\n")
    high = write("high.yaml", "seed: 2\n")
    composed = tiny("train.iterations=9", "coach.options.model=mine", files=[low, high])
    assert (composed.config.train.iterations, composed.config.seed) == (9, 2)
    assert composed.config.coach.options.model == "mine"
    origins = composed.origins
    assert origins["train.iterations"] == "command line"
    assert origins["coach.options.model"] == "command line"
    assert origins["seed"] == f"{high}:1"
    assert origins["train.learning_rate"] == "recipe acme/tiny:22"
    assert origins["train.prompts"] == "default"
    assert origins["coach.options.api_key_env"] == "default"
    assert origins["coach.options.members.1.weight"] == "recipe acme/tiny:14"


def test_every_leaf_of_the_document_has_an_origin(tiny):
    composed = tiny()
    assert composed.document["train"]["iterations"] == 2
    assert "train.betas" in composed.origins and "trackers" in composed.origins


def test_columns_of_a_file_are_not_those_of_another_file(tiny, write):
    """A layer that names a file with the source anew says all of it; one that changes the path alone keeps the rest."""
    low = write("low.yaml", "tasks:\n  use: file\n  options: {path: a.jsonl, prompt: question, reference: solution}\n")
    high = write("high.yaml", "tasks: {use: file, options: {path: b.jsonl}}\n")
    anew, path_alone = tiny(files=[low, high]), tiny("tasks.options.path=b.jsonl", files=[low])
    typed = tiny("tasks.use=file", "tasks.options.path=b.jsonl", files=[low])
    assert anew.config.tasks == typed.config.tasks
    assert (anew.config.tasks.options.prompt, anew.config.tasks.options.reference) == ("prompt", "answer")
    assert path_alone.config.tasks.options.reference == "solution"


def test_a_message_says_who_set_the_keys_that_it_names(tiny, write):
    low = write("low.yaml", "tasks:\n  use: file\n  options: {path: a.jsonl, reference: solution}\n")
    composed = tiny(files=[low])
    told = composed.tell_origins("look at tasks.options.reference, tasks.options.id and run.nothing")
    assert told.endswith(f"run.nothing (tasks.options.reference: set by {low}:3; tasks.options.id: default)")


def test_policies_of_one_provider_share_the_options_of_the_default(tiny):
    default = "policies.default={kind: api, use: openai, options: {model: a, base_url: 'http://here/v1'}}"
    judge = "policies.judge={kind: api, use: openai, options: {model: b}}"
    other = "policies.other={kind: api, use: anthropic, options: {model: c}}"
    policies = tiny(default, judge, other).config.policies
    assert (policies["judge"].options.model, policies["judge"].options.base_url) == ("b", "http://here/v1")
    assert policies["other"].options.base_url != "http://here/v1"


def test_lists_replace_and_mappings_merge(tiny):
    composed = tiny(
        "shapers=[]", "coach.options.members=[{use: x}]", "coach.reward.after=0.5", "coach.options.tags.a=b"
    )
    assert composed.config.shapers == []
    assert [member.use for member in composed.config.coach.options.members] == ["x"]
    assert composed.config.coach.reward == {"live": 1.0, "after": 0.5}
    assert composed.config.coach.options.tags == {"a": "b"}


def test_another_use_starts_its_options_afresh(tiny):
    composed = tiny("coach.use=acme_other")
    assert type(composed.config.coach.options).__name__ == "OtherCoachOptions"
    assert composed.origins["coach.options.points"] == "default"


@pytest.mark.parametrize("order", [1, -1])
def test_options_of_the_same_layer_belong_to_its_use_in_any_order(tiny, order):
    words = ["coach.use=acme_other", "coach.options.points=3"][::order]
    assert tiny(*words).config.coach.options.points == 3.0


def test_naming_the_same_use_again_keeps_the_options_below(tiny):
    assert tiny("coach.use=acme_coach").config.coach.options.model == "acme-2"


def test_tools_keep_their_limits_when_another_use_is_chosen(registry, acme):
    config = compose(registry, "acme", overrides=["tools.echo.use=acme_tool", "tools.echo.limits.cpu_s=2"]).config
    assert (config.tools["echo"].limits.wall_s, config.tools["echo"].limits.cpu_s) == (5.0, 2.0)


def test_listed_policies_start_from_default(tiny):
    policies = tiny("policies.solver.value_head=true").config.policies
    assert (policies["judge"].model, policies["judge"].kind) == ("acme/small", "frozen")
    assert (policies["solver"].model, policies["solver"].kind, policies["solver"].value_head) == (
        "acme/small",
        "full",
        True,
    )
    assert tiny("policies.default.model=x").origins["policies.judge.model"] == "command line"


def test_a_recipe_extends_another_of_its_plugin(registry):
    composed = compose(registry, "acme", "paper-outcome", overrides=["tasks.options.path=x"])
    assert composed.config.train.iterations == 120
    assert composed.origins["train.iterations"] == "recipe acme/paper:9"
    assert composed.config.coach.options.points == 1.0
    assert "model" not in composed.document["coach"]["options"]


def test_a_recipe_that_extends_itself_is_refused(registry):
    with pytest.raises(ConfigError, match="recipe acme/loop extends itself: loop -> loop"):
        compose(registry, "acme", "loop")


def test_a_full_name_names_the_plugin_too(registry):
    assert compose(registry, recipe="acme/tiny").full_name == "acme/tiny"
    with pytest.raises(ConfigError, match="recipe acme/tiny is not one of plugin 'other'"):
        compose(registry, "other", "acme/tiny")


def test_missing_plugin_is_an_error_that_lists_plugins_with_recipes(registry):
    with pytest.raises(ConfigError, match=r"no plugin was named: --plugin NAME\. Plugins with recipes: .*acme"):
        compose(registry)


# --- what is not installed --------------------------------------------------------------------------------------------


def test_a_recipe_composes_although_known_packages_are_not_installed(acme):
    composed = compose(load_plugins(only=("acme",)), "acme", "paper", overrides=["tasks.options.path=x"])
    assert {one.key for one in composed.missing_offers} == {"tools.python", "coach", "engine"}
    assert composed.document["coach"]["options"] == {"model": "gemini-2.5-pro"}
    with pytest.raises(PluginError) as caught:
        composed.require_installed()
    for package in ("mappa-sandboxfusion", "mappa-coach-gemini"):
        assert f'pip install "{package}"' in str(caught.value)


def test_recipe_of_installed_plugins_misses_no_package(tiny):
    tiny().require_installed()


def test_an_unknown_use_names_key_close_match_and_layer(tiny, write):
    file = write("mine.yaml", "seed: 3\nworkflow:\n  use: acme_teem\n")
    message = refusal(tiny, files=[file])
    assert message.startswith("workflow.use: no workflow is called 'acme_teem'. Did you mean acme_team?")
    assert message.endswith(f"(set by {file}:3)")


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trian.iterations=3", "trian: not a setting (set by command line). Did you mean train?"),
        ("train.iteratons=3", "train.iteratons: not a setting (set by command line). Did you mean train.iterations"),
        (
            "coach.options.modle=x",
            "coach.options.modle: not a setting (set by command line). Did you mean coach.options.model?",
        ),
        (
            "agents.solo.polcy=x",
            "agents.solo.polcy: not a setting (set by command line). Did you mean agents.solo.policy?",
        ),
        (
            "coach.options.members=[{use: a, wieght: 1}]",
            "coach.options.members.0.wieght: not a setting (set by command line). Did you mean coach.options.members",
        ),
        (
            "workflow.options.x=1",
            "workflow.options.x: not a setting (set by command line). There are no settings here.",
        ),
        ("train.iterations=many", "train.iterations: 'many' is not a whole number (set by command line)"),
        ("train.iterations=2.5", "train.iterations: 2.5 is not a whole number (set by command line)"),
        ("train.iterations=", "train.iterations: None is not a whole number (set by command line)"),
        ("train.minibatch_rows=x", "train.minibatch_rows: 'x' is not a whole number or null (set by command line)"),
        ("train.betas=[0.9]", "train.betas: [0.9] is not a list of 2 values: a number, a number (set by command line)"),
        ("train=5", "train: 5 stands where a section is needed"),
        ("coach=gemini", "coach: 'gemini' stands where a section is needed, with keys use, options"),
        ("shapers={use: acme_scale}", "shapers: {'use': 'acme_scale'} is not a list of sections (set by command line)"),
        ("shapers=[acme_scale]", "shapers.0: 'acme_scale' stands where a section is needed"),
        ("coach.reference_for=solo", "coach.reference_for: 'solo' is not a list of texts (set by command line)"),
        ("shapers=[{use: acme_scale, options: {low: x}}]", "shapers.0.options.low: 'x' is not a number"),
        ("tools.echo.limits.wall=1", "tools.echo.limits.wall: not a setting (set by command line). Did you mean"),
    ],
)
def test_a_mistake_names_the_full_key_and_the_layer(tiny, word, message):
    assert refusal(tiny, word).startswith(message)


def test_a_mistake_in_a_file_names_its_line(tiny, write):
    file = write("mine.yaml", "train:\n  # a comment\n  iteratons: 3\n")
    assert f"train.iteratons: not a setting (set by {file}:3)" in refusal(tiny, files=[file])


def test_all_missing_values_are_named_at_once(registry):
    message = refusal(lambda: compose(registry, "acme", "paper"))
    assert message.startswith("tasks.options.path: no value; give one in a config file or as tasks.options.path=VALUE")


def test_a_missing_model_of_a_policy_is_named(tiny):
    message = refusal(tiny, "policies={other: {kind: full}}", "policies.default.model=null")
    assert message.startswith("policies.default.model, policies.judge.model, policies.other.model: no value")


@pytest.mark.parametrize("word", ["train.iterations", "=3", "train..iterations=3", ".=1"])
def test_word_without_key_and_value_is_refused(tiny, word):
    assert refusal(tiny, word).startswith(f"{word!r} on the command line: write key=value")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: [1\nseed: 2\n", ":2: not valid YAML: expected ',' or ']'"),
        ("train:\n\titerations: 3\n", ":2: not valid YAML: found character"),
        ("seed: 1\nrun: {root: a\x01b}\n", ":2: not valid YAML: the character '\\x01'"),
        ("- 1\n", ":1: settings are a mapping"),
        ("seed: 1\nseed: 2\n", "mine.yaml:2: 'seed' is set twice, first at "),
        ("coach:\n  options: {model: '${oc.env:HOME}'}\n", ":2: '${oc.env:HOME}': settings are written out"),
    ],
)
def test_a_file_that_cannot_be_used_names_file_and_line(tiny, write, text, message):
    assert message in refusal(tiny, files=[write("mine.yaml", text)])


def test_no_value_reads_the_environment(tiny, monkeypatch):
    monkeypatch.setenv("ACME_API_KEY", "do-not-tell")
    message = refusal(tiny, "coach.options.model=${oc.env:ACME_API_KEY}")
    assert "do-not-tell" not in message
    assert "name of its environment variable" in message


def test_a_config_file_that_is_not_there_or_not_text(tiny, tmp_path):
    assert "nowhere.yaml cannot be read: " in refusal(tiny, files=[tmp_path / "nowhere.yaml"])
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert re.search(r"binary\.yaml cannot be read: ", refusal(tiny, files=[binary]))


def test_an_empty_config_file_changes_nothing(tiny, write):
    assert tiny(files=[write("empty.yaml", "# nothing\n")]).document == tiny().document


PATHS = """
from dataclasses import dataclass
from pathlib import Path

@dataclass
class Where:
    folder: Path = Path("a/b")

@hookimpl
def mappa_shapers():
    return [Offer("where", str, Where)]
"""


def test_paths_in_options_are_stored_as_text(site, acme):
    site.write("paths", PATHS)
    composed = compose(load_plugins(), "acme", overrides=["shapers=[{use: where}]"])
    assert composed.config.shapers[0].options.folder == Path("a/b")
    assert composed.document["shapers"][0]["options"] == {"folder": "a/b"}


# --- the hash ---------------------------------------------------------------------------------------------------------


def test_the_recipe_hash_depends_on_values_but_not_on_where_the_run_lies(tiny):
    assert tiny().recipe_hash == tiny("run.name=x", "run.root=y", "train.iterations=2").recipe_hash
    assert tiny().recipe_hash != tiny("seed=1").recipe_hash
    assert re.fullmatch("[0-9a-f]{64}", tiny().recipe_hash)
