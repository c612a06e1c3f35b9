"""TRL trains on what `mappa export` wrote as it is: no column is renamed, no message touched."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import pytest
import torch

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

from mappa.cli import main
from mappa.runs import RunReader
from mappa.sessions import Run

MODEL = str(files("mappa_mathchat") / "models" / "tiny")
AGENTS = ("problem_solver", "code_executor", "verifier")
SMALL = ("train.iterations=2", "train.prompts=6", "train.samples=4", "eval.problems=2", "coach.options.correction=true")
COMMON = {
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "model_init_kwargs": {"dtype": "float32"},
}
FORMS = {
    "actions": ("sft", "--min-score", "7"),
    "corrections": ("sft", "--source", "corrections", "--max-score", "4"),
    "siblings": ("dpo", "--gap", "1"),
    "corrected": ("dpo", "--source", "corrections"),
    "labels": ("kto", "--threshold", "7"),
}


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """The team of MathChat, trained a little."""
    root = tmp_path_factory.mktemp("runs")
    return Run.from_recipe("mathchat/tiny", *SMALL, f"run.root={root}", "run.name=small").train().folder


@pytest.fixture
def exported(run, tmp_path, monkeypatch):
    """Export in one form, and load one agent's file as anyone would."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def load(form: str, agent: str) -> Dataset:
        out = tmp_path / form
        if not out.exists():
            assert main(["export", str(run), "--out", str(out), "--to", *FORMS[form]]) == 0
        return load_dataset(str(out), agent, split="train", cache_dir=str(tmp_path / "cache"))

    return load


def trained(trainer) -> float:
    """The loss of the one step, after which every weight must be finite and some must have moved."""
    before = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).state_dict()
    loss = trainer.train().training_loss
    after = {name: one.cpu() for name, one in trainer.model.state_dict().items()}
    assert all(torch.isfinite(one).all() for one in after.values())
    assert any(not torch.equal(one, before[name]) for name, one in after.items())
    return loss


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("form", ["actions", "corrections"])
def test_sft(exported, tmp_path, form, agent):
    args = SFTConfig(output_dir=str(tmp_path / "out"), **COMMON)
    assert 0.0 < trained(SFTTrainer(model=MODEL, args=args, train_dataset=exported(form, agent))) < 10.0


def test_sft_computes_its_loss_on_the_very_tokens_that_were_shown_and_sampled(run, exported, tmp_path):
    data = exported("actions", "problem_solver")
    trainer = SFTTrainer(model=MODEL, args=SFTConfig(output_dir=str(tmp_path), **COMMON), train_dataset=data)
    with RunReader(run) as reader:
        rows = list(reader.trajectories.where(split="train"))
        steps = {step.id: step.completion for row in rows for step in reader.trajectory(row.id).steps}
    decode = trainer.processing_class.decode
    for source, row in zip(data["source"], trainer.train_dataset, strict=True):
        learned = [token for token in row["labels"] if token != -100]
        assert row["input_ids"][: -len(learned)] == steps[source].prompt_tokens.tolist()
        assert decode(learned) == decode(steps[source].tokens)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("form", ["siblings", "corrected"])
def test_dpo(exported, tmp_path, form, agent):
    args = DPOConfig(output_dir=str(tmp_path / "out"), **COMMON)
    loss = trained(DPOTrainer(model=MODEL, args=args, train_dataset=exported(form, agent)))
    assert loss == pytest.approx(0.6931, abs=1e-3)  # policy and reference are one before the first step


@pytest.mark.parametrize("agent", AGENTS)
def test_kto(exported, tmp_path, agent):
    data = exported("labels", agent)
    assert set(data["label"]) == {True, False}
    args = KTOConfig(output_dir=str(tmp_path / "out"), **COMMON)
    assert 0.0 < trained(KTOTrainer(model=MODEL, args=args, train_dataset=data)) < 2.0
