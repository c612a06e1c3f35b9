"""A base model on a learner's rank: where it computes, and where it waits."""

import pytest
import torch

from mappa_engine.cluster.learners import frozen_model
from mappa_engine.cluster.learners.frozen_model import FrozenModel
from mappa_engine.learning.batching import BatchLayout


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """Where models were moved to and when one was checked, in order; nothing moves."""
    found: list[str] = []

    def move(module, device):
        found.append(torch.device(device).type)
        return module

    monkeypatch.setattr(torch.nn.Module, "to", move)
    monkeypatch.setattr(frozen_model, "check_model", lambda *_, **__: found.append("checked"))
    return found


def test_model_is_checked_on_its_device(qwen3, events):
    """On a host without bfloat16, one thread a rank, a model of 4 B parameters would be checked for minutes."""
    FrozenModel(qwen3, dtype=torch.bfloat16, device=torch.device("cuda"), layout=BatchLayout("packed", 64))
    assert events == ["cuda", "checked", "cpu"]


def test_model_stays_on_its_device_until_the_outermost_use_ends(qwen3, events):
    base = FrozenModel(qwen3, dtype=torch.bfloat16, device=torch.device("cuda"), layout=BatchLayout("packed", 64))
    events.clear()
    with base.on_device():
        for _ in range(2):
            with base.on_device():
                pass
        assert "cpu" not in events
    assert events.count("cpu") == 1
