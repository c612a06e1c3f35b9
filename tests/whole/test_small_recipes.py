"""The recipes for one GPU of 24 GB: what they set themselves, that they fit, and that they say what they need."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import yaml

from mappa.cli import main
from mappa.sessions import ComposedConfig, compose
from mappa.testing import load_plugins

SIZES = {
    "small": {"hidden": 1536, "inner": 8960, "layers": 28, "key": 256, "parameters": 1_543_714_304},
    "small-full": {"hidden": 896, "inner": 4864, "layers": 24, "key": 128, "parameters": 494_032_768},
}
"""Published sizes of Qwen2.5-1.5B-Instruct and Qwen2.5-0.5B-Instruct."""
GPU = ("--gpus", "1", "--gpu-memory", "24")
RECIPES = [("mathchat", "small"), ("mathchat", "small-full"), ("dsbench", "small"), ("dsbench", "small-full")]
each_recipe = pytest.mark.parametrize(("plugin", "name"), RECIPES)


@pytest.fixture(scope="module")
def registry():
    return load_plugins()


def recipe(registry, plugin: str, name: str, *words: str) -> ComposedConfig:
    return compose(registry, plugin, name, overrides=words)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """Folders with the published config and the headers of the published weights, without the weights."""
    root = tmp_path_factory.mktemp("models")
    return {name: write_headers(root / name, **size) for name, size in SIZES.items()}


def write_headers(folder: Path, *, hidden: int, inner: int, layers: int, key: int, parameters: int) -> str:
    heads = hidden // (128 if hidden == 1536 else 64)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": 2, "vocab_size": 151_936, "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": [151_936, hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        for name, shape in {
            "self_attn.q_proj.weight": [hidden, hidden], "self_attn.q_proj.bias": [hidden],
            "self_attn.k_proj.weight": [key, hidden], "self_attn.k_proj.bias": [key],
            "self_attn.v_proj.weight": [key, hidden], "self_attn.v_proj.bias": [key],
            "self_attn.o_proj.weight": [hidden, hidden], "mlp.gate_proj.weight": [inner, hidden],
            "mlp.up_proj.weight": [inner, hidden], "mlp.down_proj.weight": [hidden, inner],
            "input_layernorm.weight": [hidden], "post_attention_layernorm.weight": [hidden],
        }.items():  # fmt: skip
            shapes[f"model.layers.{layer}.{name}"] = shape
    counted = sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in shapes.values())
    assert counted == parameters, "not the published shape"
    header = json.dumps(
        {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    ).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return str(folder)


def plan(capsys, plugin: str, name: str, model: str, *words: str) -> dict:
    code = main(["plan", "--plugin", plugin, "--recipe", name, "--json", f"policies.default.model={model}", *words])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


@each_recipe
def test_small_recipes_inherit_nothing_from_the_tiny_recipe(registry, plugin, name):
    """A learning rate, caps and dtype that suit 240,000 weights teach a real model nothing."""
    chain, own = [], name
    while own:
        chain.append(own)
        own = yaml.safe_load(registry.recipe(plugin, own).file.read_text()).get("extends")
    assert "tiny" not in chain
    composed = recipe(registry, plugin, name)
    config = composed.config
    assert config.train.learning_rate == {"small": 1e-5, "small-full": 1e-6}[name]
    assert config.agents == {} and config.sampling.max_tokens == {"mathchat": 1024, "dsbench": 1536}[plugin]
    assert (
        config.workflow.options.token_limit == config.sampling.max_tokens and config.workflow.options.prompts == "full"
    )
    engine = config.engine.options
    assert (engine.dtype, engine.deterministic) == ("auto", False)
    assert config.train.correction.kind == "truncate"
    assert config.policies["default"].kind == {"small": "lora", "small-full": "full"}[name]
    assert config.tools["python"].use == "python" and config.tools["python"].options is not None
    tiny = recipe(registry, plugin, "tiny")
    assert not any("tiny" in origin for origin in composed.origins.values())
    assert config.train.learning_rate < tiny.config.train.learning_rate / 10


@each_recipe
def test_small_recipe_fits_one_gpu_of_24_gb_in_bfloat16(capsys, models, plugin, name):
    shown = plan(capsys, plugin, name, models[name], *GPU)
    placement = shown["memory"]["placement"]
    assert (placement["device"], placement["dtype"]) == ("gpu", "bfloat16")
    window = {"mathchat": 8192, "dsbench": 16_384}[plugin]
    per_token = {"small": 2 * 28 * 256 * 2, "small-full": 2 * 24 * 128 * 2}[name]
    assert placement["options"]["kv_cache_mb"] << 20 >= 2 * window * per_token
    (slot,) = placement["slots"].values()
    for phase in ("learning", "syncing", "sampling"):
        held = sum(sum(parts[phase].values()) for parts in slot["actors"].values())
        assert held <= 0.92 * 24e9, phase
    assert len(slot["actors"]) == {"small": 2, "small-full": 4}[name]


@each_recipe
def test_plan_without_a_gpu_names_the_smallest_sufficient_gpu(capsys, models, monkeypatch, plugin, name):
    monkeypatch.setattr("mappa_engine.node._run", lambda *program: "")
    from mappa_engine.node import this_node

    this_node.cache_clear()
    assert main(["plan", "--plugin", plugin, "--recipe", name, f"policies.default.model={models[name]}", *OFFLINE]) == 0
    assert "no GPU is seen here; it fits 1 GPU of 24 GB" in capsys.readouterr().out
    this_node.cache_clear()


OFFLINE = ("tasks={use: file, options: {path: nowhere.jsonl, eval_path: nowhere.jsonl}}",)


def test_a_dry_run_names_all_that_is_missing_at_once(capsys, monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = ("--plugin", "mathchat", "--recipe", "small", "policies.default.model=someone/not-here", *OFFLINE)
    assert main(["train", *words, "--dry-run"]) == 2
    refused = capsys.readouterr().err
    assert main(["plan", *words]) == 0
    planned = capsys.readouterr().out
    for said in (refused, planned.partition("before it can start here:")[2]):
        assert "nowhere.jsonl: there is no such file" in said
        assert "GEMINI_API_KEY is not set" in said
        assert "someone/not-here: it is not a folder" in said


@pytest.mark.parametrize("name", ["small", "small-full"])
def test_a_dry_run_is_ready_where_everything_is_there(capsys, monkeypatch, tmp_path, name):
    """With a model of two layers and the engine of this environment."""
    monkeypatch.setenv("GEMINI_API_KEY", "none-is-used")
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"problem": f"1 + {n}?", "answer": str(1 + n)}) + "\n" for n in range(200)))
    columns = f"path: {tasks}, eval_path: {tasks}, prompt: problem, reference: answer"
    words = (
        f"tasks={{use: file, options: {{{columns}}}}}", "engine={use: local, options: {device: cpu}}",
        "policies.default.model=package:mappa_engine/models/tiny", f"run.root={tmp_path / 'runs'}",
    )  # fmt: skip
    assert main(["train", "--plugin", "mathchat", "--recipe", name, "--dry-run", *words]) == 0, capsys.readouterr().err
    assert "200 training and 62 held-out tasks" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_tables_are_hidden_from_programs_as_in_the_recipe_that_is_tested(registry):
    small, tiny = (recipe(registry, "dsbench", name).config.tools["python"] for name in ("small", "tiny"))
    assert small.options == tiny.options
