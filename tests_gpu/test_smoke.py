"""What needs a GPU, in one command: `make gpu-smoke`. It prints figures for docs/engines.md.

Each test is a short training of the recipe mathchat/tiny with its real team, tools and coach.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from mappa.runs import RunReader
from mappa.training.run import Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

SMALL = ("train.iterations=3", "train.prompts=8", "eval.problems=16", "train.micro_tokens=2048")
CLUSTER = ("engine.use=cluster", "engine.options.dtype=bfloat16", "engine.options.kv_cache_mb=1024")
LOCAL = {
    dtype: (f"engine.options={{device: cuda, dtype: {dtype}, deterministic: false}}",)
    for dtype in ("float32", "bfloat16")
}
"""Settings of short trainings, by what they try; the tests of the engine hold all of them to its own checks."""
ONE_GPU = {
    # Learners and samplers take turns. Under ZeRO-1 they could not: its gradients stay.
    **{f"zero {zero}": (*CLUSTER, f"engine.options.zero={zero}") for zero in (2, 3)},
    "float32": (*CLUSTER, "engine.options.dtype=float32"),
    "optimiser on the host": (*CLUSTER, "engine.options.offload_optimizer=true"),
    "adapters": (*CLUSTER, "policies.default={kind: lora, lora: {rank: 8, alpha: 16.0}}"),
}
TWO_GPUS = {
    f"zero {zero}": (*CLUSTER, "engine.options.placement=separate", f"engine.options.zero={zero}") for zero in (1, 2, 3)
}


class Peak(threading.Thread):
    """The most memory in bytes that was in use on the first GPU, by any process, beyond what was at the start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._idle = self._used()
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            self.bytes = max(self.bytes, self._used() - self._idle)

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.bytes

    @staticmethod
    def _used() -> int:
        free, total = torch.cuda.mem_get_info(0)
        return total - free


def trained(root: Path, *words: str) -> list[float]:
    """Train; return the mean mismatch of every policy in every iteration."""
    peak, started = Peak(), time.monotonic()
    peak.start()
    outcome = Run.from_recipe("mathchat/tiny", *SMALL, f"run.root={root}", *words).train()
    print(f"\n{' '.join(words)}: {time.monotonic() - started:.0f} s, peak {peak.end() / 2**30:.2f} GiB")
    with RunReader(outcome.folder) as reader:
        gaps = [policy["mismatch_mean"] for report in reader.iterations for policy in report.policies.values()]
    print(f"mismatch of samplers and learners: mean {max(gaps):.2g} nats at most")
    return gaps


@pytest.mark.parametrize("words", LOCAL.values(), ids=LOCAL)
def test_the_local_engine_on_a_gpu(words, tmp_path):
    assert all(gap < 0.03 for gap in trained(tmp_path, *words))


@pytest.mark.parametrize("words", ONE_GPU.values(), ids=ONE_GPU)
def test_the_cluster_engine_on_a_gpu(words, tmp_path):
    trained(tmp_path, *words)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("words", TWO_GPUS.values(), ids=TWO_GPUS)
def test_the_cluster_engine_on_two_gpus(words, tmp_path):
    trained(tmp_path, *words)
