"""What can be said of transfers between GPUs without one: vLLM's own learner side makes these calls, in this order."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mappa_engine.cluster.samplers.messages import SamplerConfig
from mappa_engine.cluster.sync import vllm_transfer

WEIGHTS = {"embed": torch.zeros(4, 2, dtype=torch.bfloat16), "norm": torch.zeros(2, dtype=torch.bfloat16)}
METAS = [vllm_transfer.TensorMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in WEIGHTS.items()]
RENDEZVOUS = vllm_transfer.TransferRendezvous(host="10.0.0.1", port=4242, workers=(2, 1))


@pytest.fixture
def calls():
    return []


@pytest.fixture
def sender(monkeypatch, calls):
    """Makes a sender; what a GPU would do is left out."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronise"))
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="GPU-1"))

    def make(transport, rank=0, metas=METAS):
        def call(method, arguments):
            calls.append((method, arguments))

        source = vllm_transfer.WeightSource(metas, WEIGHTS.items)
        return vllm_transfer.GpuSender(transport, "solver", rank=rank, source=source, call=call, rendezvous=RENDEZVOUS)

    return make


def methods(calls):
    return [call[0] for call in calls if not isinstance(call, str)]


@pytest.fixture
def broadcast(monkeypatch, calls):
    from vllm.distributed.weight_transfer import nccl_engine

    def join(info):
        calls.append(f"join {info.world_size}")
        return "communicator"

    def producer(iterator, **settings):
        calls.extend(f"broadcast {name}" for name, _ in iterator)

    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", join)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", producer)
    return nccl_engine


def test_nccl_gives_engines_ranks_and_tensors(sender, broadcast, calls):
    one = sender("nccl")
    assert "join 4" in calls
    ((method, arguments),) = [call for call in calls if not isinstance(call, str)]
    infos = [broadcast.NCCLWeightTransferInitInfo(**engine["init_info"]) for engine in arguments]
    assert method == "init_weight_transfer_engine"
    assert [info.rank_offset for info in infos] == [1, 3]
    assert {(info.master_address, info.master_port, info.world_size, info.packed) for info in infos} == {
        ("10.0.0.1", 4242, 4, True)
    }
    calls.clear()
    sent = one.send(5)
    assert methods(calls) == ["start_weight_update", "update_weights", "finish_weight_update"]
    assert calls[0] == "synchronise", "the optimiser's step may still be under way"
    assert [call for call in calls if isinstance(call, str)][1:] == [
        "synchronise", "broadcast embed", "synchronise", "synchronise", "broadcast norm", "synchronise",
    ]  # fmt: skip
    (update,) = [
        arguments for method, arguments in [c for c in calls if not isinstance(c, str)] if "update_w" in method
    ]
    info = broadcast.NCCLWeightTransferUpdateInfo(**update[1]["update_info"])
    assert (info.names, info.dtype_names, info.shapes) == (["embed", "norm"], ["bfloat16"] * 2, [[4, 2], [2]])
    assert calls[-1][1] == [{"weight_version": "5"}] * 2
    assert (sent.version, sent.names, sent.bytes) == (5, ("embed", "norm"), 20)


def test_other_ranks_do_not_call_engines(sender, broadcast, calls):
    one = sender("nccl", rank=1)
    one.send(5)
    assert methods(calls) == [] and calls.count("synchronise") == 5


def test_ipc_is_packed_without_ranks(sender, monkeypatch, calls):
    from vllm.distributed.weight_transfer import ipc_engine
    from vllm.distributed.weight_transfer.packed_tensor import PackedIpcChunk

    def producer(iterator, gpu_uuid, post_iter_func, buffer_size_bytes):
        assert buffer_size_bytes == vllm_transfer.BUFFER_BYTES
        named = list(iterator)
        yield PackedIpcChunk(
            names=[name for name, _ in named],
            shapes=[list(tensor.shape) for _, tensor in named],
            dtype_names=["bfloat16"] * len(named),
            tensor_sizes=[tensor.nbytes for _, tensor in named],
            ipc_handle={gpu_uuid: ("handle",)},
        )

    monkeypatch.setattr(ipc_engine, "packed_ipc_producer", producer)
    one = sender("ipc")
    assert calls == [("init_weight_transfer_engine", [{"init_info": {"packed": True}}] * 2)]
    taken = []
    taker = vllm_transfer.GpuReceiver(lambda method, arguments: taken.append(method), taken.append)
    calls.clear()
    one.send(6)
    for method, arguments in [call for call in calls if not isinstance(call, str)]:
        taker.handle_call(method, arguments[0])
    assert taken == ["start_weight_update", "update_weights", "finish_weight_update", 6]
    assert (taker.received_record().names, taker.received_record().version) == (("embed", "norm"), 6)


def test_workers_of_vllm_have_these_methods():
    from vllm.v1.worker.gpu_worker import Worker

    for name in ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"):
        assert callable(getattr(Worker, name))


@pytest.mark.parametrize("transport", ["nccl", "ipc"])
def test_the_sampler_asks_vllm_for_the_transport(transport):
    from mappa_engine.cluster.samplers.vllm_engine import _engine_args

    setup = SamplerConfig(
        model="m", device="cuda", dtype="bfloat16", window=64, kv_cache_bytes=1 << 20, max_batch=1, transport=transport
    )
    assert _engine_args(setup).weight_transfer_config.backend == transport
    assert _engine_args(replace(setup, transport="store")).weight_transfer_config is None
