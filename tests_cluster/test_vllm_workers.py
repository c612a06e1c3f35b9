"""What vLLM's own code says to this engine's: memory at its start, the samplers of both runners, updates that broke."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from vllm import SamplingParams
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.utils.mem_utils import MemorySnapshot
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.sample import sampler as runner_v2
from vllm.v1.worker.gpu.sample import states
from vllm.v1.worker.utils import request_memory

from mappa_core.engine import Machine, PolicySpec, Sampling, TrainSection
from mappa_engine.cluster.placement import ModelShape, Resources, find_placement
from mappa_engine.cluster.samplers.messages import SamplerConfig
from mappa_engine.cluster.samplers.remote_engine import vllm_environment
from mappa_engine.cluster.samplers.sampling_masks import mask_candidates, read_logprobs
from mappa_engine.cluster.samplers.server import SamplerServer
from mappa_engine.cluster.setup import ClusterSetup
from mappa_engine.cluster.sync.vllm_transfer import START_UPDATE
from mappa_engine.options import ClusterOptions

from .conftest import WINDOW, write_model

# --- memory that vLLM wants to find free ------------------------------------------------------------------------------

GB = 10**9
SHAPE = ModelShape(
    model="1.5b", parameters=1_540_000_000, layers=28, hidden=1536, intermediate=8960, heads=12, kv_heads=2,
    head_dim=128, vocabulary=151_936, window=32_768, tied=True, largest=151_936 * 1536, linears=(("q_proj", 3072),),
)  # fmt: skip


@pytest.fixture(scope="module")
def three_on_one_gpu() -> ClusterSetup:
    policies = tuple(PolicySpec(name=name, model="1.5b") for name in ("solver", "coder", "verifier"))
    options = ClusterOptions(zero=2, kv_cache_mb=2048, max_model_len=8192, gradient_checkpointing=True, samplers=1)
    nodes = (Machine(host="n0", cpus=16, gpus=1, gpu_bytes=141 * GB),)
    placement = find_placement(
        policies, {"1.5b": SHAPE}, Resources(nodes=nodes), options, train=TrainSection(micro_tokens=2048)
    )
    return ClusterSetup(
        specs={policy.name: policy for policy in policies}, models={}, weight_names={}, shapes={"1.5b": SHAPE},
        placement=placement, options=placement.options, train=TrainSection(), seed=0,
    )  # fmt: skip


def snapshot(setup: ClusterSetup, pool: str) -> MemorySnapshot:
    """What vLLM sees of the GPU when the engine of `pool` starts beside everything else that samples there."""
    others = [load.bytes_at("sampling") for load in setup.placement.loads_on(0) if load.actor != f"sampler {pool}"]
    total = setup.placement.slots[0].size
    (own,) = [load for load in setup.placement.loads_on(0) if load.actor == f"sampler {pool}"]
    free = total - sum(others) - own.by_phase["sampling"]["context"]
    return MemorySnapshot(device="cpu", auto_measure=False, total_memory=total, free_memory=free)


@pytest.mark.parametrize("pool", ["solver", "coder", "verifier"])
def test_engine_starts_beside_others(three_on_one_gpu, pool):
    (placed,) = [placed for placed in three_on_one_gpu.placement.pools if placed.name == pool]
    share = three_on_one_gpu.memory_share(placed, 0)
    there = snapshot(three_on_one_gpu, pool)
    assert request_memory(there, SimpleNamespace(gpu_memory_utilization=share)) <= there.free_memory
    with pytest.raises(ValueError, match="less than desired GPU memory utilization"):
        request_memory(there, SimpleNamespace(gpu_memory_utilization=0.92))


def test_engine_without_room_is_refused(three_on_one_gpu):
    placed = three_on_one_gpu.placement.pools[0]
    there = replace(snapshot(three_on_one_gpu, placed.name), free_memory=5 * GB)
    with pytest.raises(ValueError, match="less than desired GPU memory utilization"):
        share = three_on_one_gpu.memory_share(placed, 0)
        request_memory(there, SimpleNamespace(gpu_memory_utilization=share))


# --- the sampler of the runner that GPUs have -------------------------------------------------------------------------

VOCABULARY = 97
WAYS = (
    {"temperature": 0.7, "top_p": 0.5, "top_k": 40, "seed": 1},
    {"temperature": 1.3, "top_k": 5, "seed": 2},
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 4},
    {"temperature": 0.6, "top_p": 0.8, "top_k": 11, "seed": 5},
)


@pytest.fixture
def sampler(monkeypatch) -> runner_v2.Sampler:
    """vLLM's own sampler of Model Runner V2, with torch in place of its Triton kernels."""

    def gumbel_sample(logits, mapping, temperature, seeds, positions, **_):
        noise = torch.distributions.Gumbel(0.0, 1.0)
        torch.manual_seed(0)
        drawn = logits.float() + noise.sample(logits.shape)
        greedy = temperature[mapping] == 0.0
        return torch.where(greedy, logits.argmax(-1), drawn.argmax(-1))

    def apply_temperature(logits, mapping, temperature):
        chosen = temperature[mapping]
        logits.div_(torch.where(chosen == 0.0, 1.0, chosen)[:, None])

    def compute_topk_scores(logits, count, sampled, *_, **__):
        scores = logits.float().log_softmax(-1)
        ids = torch.cat([sampled[:, None], scores.topk(count, -1).indices], -1)
        return LogprobsTensors(logprob_token_ids=ids, logprobs=scores.gather(-1, ids), selected_token_ranks=sampled * 0)

    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    monkeypatch.setattr(runner_v2, "gumbel_sample", gumbel_sample)
    monkeypatch.setattr(states, "apply_temperature", apply_temperature)
    monkeypatch.setattr(runner_v2, "compute_topk_scores", compute_topk_scores)
    monkeypatch.setattr(runner_v2, "get_num_sampled_and_rejected", lambda count, *_: (count, count * 0))
    one = object.__new__(runner_v2.Sampler)
    one.logprobs_mode, one.compute_nans, one.use_fp64_gumbel = "processed_logprobs", False, False
    one.use_flashinfer = one.use_xpu_sampler = one.return_sampling_mask = False
    one.sampling_states = states.SamplingStates(len(WAYS), VOCABULARY)
    one.logits_processors, one.trace_replay_state = [], None
    one.thinking_budget_state = SimpleNamespace(apply=lambda logits, context: None)
    one.logprob_token_ids_state = SimpleNamespace(max_num_token_ids=lambda mapping: 0)
    one.needs_logits_processing = np.zeros(len(WAYS), dtype=bool)
    one.req_states = SimpleNamespace(prefill_len=SimpleNamespace(gpu=None))
    for number, way in enumerate(WAYS):
        asked = SamplingParams(logprobs=mask_candidates(Sampling(**way), VOCABULARY), **way)
        one.needs_logits_processing[number] = one.sampling_states.add_request(number, asked)
    one.sampling_states.apply_staged_writes()
    return one


def sample(sampler: runner_v2.Sampler, logits: torch.Tensor) -> LogprobsTensors:
    """The log-probabilities of the sampled tokens, and of the likeliest."""
    count = len(logits)
    every = torch.arange(count)
    batch = SimpleNamespace(
        expanded_idx_mapping=every, idx_mapping=every, idx_mapping_np=every.numpy(), expanded_local_pos=every * 0,
        cu_num_logits_np=np.arange(count + 1), cu_num_logits=None, positions=every, input_ids=every,
        logits_indices=every, seq_lens_cpu_upper_bound=every, seq_lens=every, num_reqs=count,
    )  # fmt: skip
    return sampler(logits.clone(), batch).logprobs_tensors


def test_gpu_sampler_logprobs_are_of_the_truncated_distribution(sampler):
    logits = 3.0 * torch.randn(len(WAYS), VOCABULARY, generator=torch.Generator().manual_seed(3))
    found = sample(sampler, logits)
    for row, way in enumerate(WAYS):
        sampling = Sampling(**way)
        scaled = logits[row] / (sampling.temperature or 1.0)
        asked = 1 + mask_candidates(sampling, VOCABULARY)
        flat = SimpleNamespace(
            token_ids=found.logprob_token_ids[row, :asked].tolist(), logprobs=found.logprobs[row, :asked].tolist(),
            start_indices=[0], end_indices=[asked],
        )  # fmt: skip
        (logprob,), tokens, sizes = read_logprobs(flat, sampling, VOCABULARY)
        token = flat.token_ids[0]
        if not (sampling.top_k and sampling.temperature):
            assert tokens is sizes is None
            tokens = np.arange(VOCABULARY)
        else:
            order = scaled.argsort(descending=True)[: sampling.top_k]
            chances = torch.softmax(scaled[order], 0)
            left = order[chances.cumsum(0) - chances < sampling.top_p]
            assert sorted(tokens.tolist()) == sorted(left.tolist())
            assert sizes.tolist() == [len(left)] and token in tokens
        expected = scaled[token] - scaled[torch.from_numpy(tokens.astype(np.int64))].logsumexp(0)
        assert logprob == pytest.approx(expected.item(), abs=1e-5)


# --- updates from GPU to GPU that broke off ---------------------------------------------------------------------------


class _Update(WeightTransferUpdateInfo):
    def __init__(self, folder: str, names: list[str]) -> None:
        self.folder, self.names = folder, names


class HostTransfer(WeightTransferEngine):
    """A transfer of vLLM's that reads tensors of a folder, in place of one that needs GPUs."""

    init_info_cls, update_info_cls = WeightTransferInitInfo, _Update

    def init_transfer_engine(self, init_info) -> None:
        """Nobody to meet."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info) -> None:
        tensors = load_file(f"{update_info['folder']}/model.safetensors")
        self.model.load_weights((name, tensors[name]) for name in update_info["names"])
        if update_info.get("breaks"):
            raise ConnectionError("the sender is gone")

    def receive_weights(self, update_info) -> None:
        raise NotImplementedError

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.vllm_config.model_config)

    def shutdown(self) -> None:
        """Nothing is held."""


def follow(config: SamplerConfig, script: list[tuple[str, dict]], sequence: np.ndarray) -> list[np.ndarray | str]:
    """Start an engine with that transfer and make the calls of a script; returns errors, and log-probabilities by the
    newest weights where the script says so."""
    WeightTransferEngineFactory.register_engine("host", HostTransfer)
    server = SamplerServer(config, paused=True)
    found: list[np.ndarray | str] = []
    for method, arguments in script:
        try:
            if method == "score":
                found.append(server.logprobs("solver", arguments["version"], [sequence])[0])
            else:
                server.transfer(method, arguments)
        except Exception as error:  # noqa: BLE001
            found.append(f"{type(error).__name__}: {error}")
    return found


class Follower:
    """An actor that follows scripts."""

    def follow(self, *arguments):
        return follow(*arguments)


async def test_interrupted_transfer_can_be_repeated(ray_actors, llama, tmp_path):
    newer = write_model(tmp_path / "newer", "llama", seed=7)
    names = sorted(load_file(f"{newer}/model.safetensors"))
    whole = {"folder": newer, "names": names}
    half = {"folder": llama, "names": names[: len(names) // 2]}
    sequence = np.random.default_rng(0).integers(3, 259, 40).astype(np.int32)
    config = SamplerConfig(
        model=llama, device="cpu", dtype="float32", window=WINDOW, kv_cache_bytes=32 << 20, max_batch=8,
        transport="host",
    )  # fmt: skip
    finish = ("finish_weight_update", {"weight_version": "1"})
    script = [
        (START_UPDATE, {}),
        ("update_weights", {"update_info": half}),  # and the learners failed: nothing follows
        ("score", {"version": 0}),
        (START_UPDATE, {}),
        ("update_weights", {"update_info": {**half, "breaks": True}}),
        (START_UPDATE, {}),
        ("update_weights", {"update_info": whole}),
        finish,
        ("score", {"version": 1}),
    ]
    actor = await ray_actors.start(
        Follower, name="follower", role="sampler", deadline_s=300, environment=vllm_environment("cpu", "float32")
    )
    refused, broke, found = await ray_actors.wait_for(
        actor.call("follow", config, script, sequence), deadline_s=300, what="follow"
    )
    await ray_actors.end(actor)
    assert "did not arrive whole" in refused
    assert "the sender is gone" in broke
    with torch.inference_mode():
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(newer, dtype=torch.float32).eval()
        logits = model(input_ids=torch.tensor(sequence[None].astype(np.int64))).logits[0, :-1]
        ids = torch.tensor(sequence[1:].astype(np.int64))
        expected = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    assert np.abs(found - expected.numpy()).max() < 1e-4
