"""Weights on their way to samplers: what is checked, in which order, and what ends in an error."""

import asyncio
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_engine.cluster.errors import ActorLost, SyncError
from mappa_engine.cluster.sync import gpu_transfer, probe, vllm_transfer
from mappa_engine.cluster.sync.buckets import (
    BUCKET_BYTES,
    ReceivedBucket,
    ReceivedTensors,
    bucket_tensors,
    fill_buckets,
)
from mappa_engine.cluster.sync.publisher import Publisher, WeightRoute
from mappa_engine.cluster.sync.sender import BucketSender, order_for_sending
from mappa_engine.cluster.sync.transfer_records import ReceivedWeights, SentWeights, check_received, check_sent

LARGE = BUCKET_BYTES + 1
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8]


# Buckets


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3)), max_size=12),
    st.integers(1, 600),
)
def test_buckets_round_trip(wanted, size):
    random = torch.Generator().manual_seed(0)
    sent = [
        (f"t{index}", torch.randint(-99, 99, shape, generator=random).to(dtype).t() if len(shape) == 2 else
         torch.randint(-99, 99, shape, generator=random).to(dtype))
        for index, (dtype, shape) in enumerate(wanted)
    ]  # fmt: skip
    buckets = list(fill_buckets(sent, size))
    for bucket in buckets:
        for data in bucket.data:
            data.flags.writeable = False
        assert bucket.bytes <= size or len(bucket.names) == 1
    arrivals = ReceivedTensors({})
    arrived = list(arrivals.tensors(map(ReceivedBucket.of, buckets)))
    assert [name for name, _ in arrived] == [name for name, _ in sent]
    for (_, tensor), (_, other) in zip(sent, arrived, strict=True):
        assert tensor.dtype == other.dtype and tensor.shape == other.shape and torch.equal(tensor, other)
    assert arrivals.checksums == [checksum for bucket in buckets for checksum in bucket.checksums]


def test_tensors_of_the_host_are_not_copied():
    sent = {"a": torch.ones(100), "b": torch.ones(100, dtype=torch.bfloat16)}
    (bucket,) = fill_buckets(sent.items())
    assert {name: tensor.data_ptr() for name, tensor in bucket_tensors(bucket)} == {
        name: tensor.data_ptr() for name, tensor in sent.items()
    }


def test_tensors_are_read_before_the_next_bucket():
    def gathered():
        for value in range(5):
            yield f"t{value}", torch.full((10,), float(value))  # freed by its owner once the next one is asked for

    assert [tensor[0].item() for bucket in fill_buckets(gathered(), 100) for _, tensor in bucket_tensors(bucket)] == [
        0,
        1,
        2,
        3,
        4,
    ]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 399), st.integers(0, 7))
def test_a_flipped_bit_changes_the_checksum(place, bit):
    (bucket,) = fill_buckets([("a", torch.arange(100.0))])
    bucket.data[0][place] ^= 1 << bit
    assert ReceivedBucket.of(bucket).checksums != bucket.checksums


def test_buckets_grow_from_a_small_one():
    sent = [(f"t{index}", torch.zeros(1 << 18)) for index in range(95)]  # a MiB each
    assert [len(bucket.names) for bucket in fill_buckets(sent)] == [4, 8, 16, 30, 30, 7]
    assert [len(bucket.names) for bucket in fill_buckets(sent[:9], 3 << 20)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([("embed", LARGE), ("a", 1), ("b", 2), ("c", 3), ("d", 4)], "a b embed c d"),
        ([("embed", LARGE), ("a", BUCKET_BYTES), ("b", BUCKET_BYTES)], "a embed b"),
        ([("a", 3), ("b", 2), ("c", 1)], "a b c"),
        ([("embed", LARGE)], "embed"),
        ([], ""),
        (
            [
                ("embed", LARGE),
                *((f"layers.{layer}.{part}.weight", LARGE) for layer in "01" for part in "qk"),
                ("d", 1),
            ],
            "layers.0.q.weight layers.0.k.weight embed layers.1.q.weight layers.1.k.weight d",
        ),
    ],
)
def test_large_tensors_of_no_layer_are_sent_in_the_middle(given, sent):
    assert " ".join(name for name, _ in order_for_sending(given, lambda tensor: tensor)) == sent


def test_the_checksum_covers_dtype_and_shape():
    zeros = torch.zeros(4, 2)
    alike = [zeros, zeros.view(2, 4), zeros.view(torch.int32)]
    assert len({bucket.checksums[0] for tensor in alike for bucket in fill_buckets([("a", tensor)])}) == 3


# Receipts

NAMES = ("embed", "layer.0", "layer.1", "norm")
TIED = {"embed": "head"}


def weights(value: float = 0.0) -> dict[str, torch.Tensor]:
    return {name: torch.full((3, 5), value + index) for index, name in enumerate(NAMES)}


def transfer(change=lambda bucket: bucket):
    sending, arrivals = BucketSender("solver", 7, weights().items(), 100), ReceivedTensors(TIED)
    list(arrivals.tensors(ReceivedBucket.of(change(bucket)) for bucket in iter(sending.next_bucket, None)))
    return sending.sent_record(), ReceivedWeights(
        names=tuple(arrivals.names), checksums=tuple(arrivals.checksums), version=7, seconds=0.0
    )


def test_a_whole_transfer_passes():
    sent, received = transfer()
    check_sent(sent, NAMES)
    check_received(sent, received, TIED, engine="e0")
    assert received.names == ("embed", "head", "layer.0", "layer.1", "norm")
    assert sent.checksum == transfer()[0].checksum


def test_a_damaged_tensor_is_named():
    def flip(bucket):
        if "layer.1" in bucket.names:
            bucket.data[bucket.names.index("layer.1")][1] ^= 1
        return bucket

    with pytest.raises(SyncError, match=r"policy 'solver', version 7, engine 'e0': layer\.1 arrived damaged"):
        check_received(*transfer(flip), TIED, engine="e0")


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([0, 1, 2, 3], "norm did not arrive"),
        ([0, 1, 3, 4], r"layer\.1 arrived where layer\.0 was sent"),
        ([0, 2, 3, 4], r"layer\.0 arrived where head was sent"),
        ([0, 1, 3, 2, 4], r"layer\.1 arrived where layer\.0 was sent"),
        ([0, 1, 2, 3, 4, 4], "norm arrived where nothing was sent"),
        ([], "embed did not arrive"),
    ],
)
def test_missing_reordered_and_extra_tensors_are_named(places, message):
    sent, received = transfer()
    other = replace(
        received,
        names=tuple(received.names[place] for place in places),
        checksums=tuple(received.checksums[place] for place in places),
    )
    with pytest.raises(SyncError, match=message):
        check_received(sent, other, TIED, engine="e0")


def test_a_wrong_version_is_an_error():
    sent, received = transfer()
    with pytest.raises(SyncError, match="labels its tokens with version 6"):
        check_received(sent, replace(received, version=6), TIED, engine="e0")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (NAMES[:-1], r"did not send norm \(1 missing of 4\)"),
        ((*NAMES, "bias"), "sent bias, which the model does not have"),
        ((*NAMES, "norm"), "sent norm more than once"),
    ],
)
def test_a_learner_sends_exactly_the_tensors_of_the_model(names, message):
    sent = replace(transfer()[0], names=names, checksums=("",) * len(names))
    with pytest.raises(SyncError, match=message):
        check_sent(sent, NAMES)


# Probes


@pytest.mark.parametrize(
    ("dtype", "nats", "differences", "passes"),
    [
        ("float32", None, [1.9e-4, 0.0], True),
        ("float32", None, [1.9e-4, 0.2e-4], False),
        ("float32", 1e-2, [1.9e-4, 0.2e-4], True),
        ("bfloat16", None, [0.49, 0.0], True),
        ("bfloat16", None, [0.49, 0.02], False),
        ("bfloat16", 0.01, [0.05, 0.0], False),
        ("float32", None, [np.nan, 0.0], False),
        ("bfloat16", None, [np.nan, 0.0], False),
    ],
)
def test_limits_of_a_probe(dtype, nats, differences, passes):
    gap = np.array(differences, dtype=np.float32)
    found = probe.compare_logprobs([np.zeros(1, np.float32), np.zeros(1, np.float32)], [gap[:1], gap[1:]])
    limit = nats or probe.MAX_MEAN_NATS[dtype]
    if passes:
        probe.check_probe(found, limit, policy="solver", version=1, engine="e0")
    else:
        with pytest.raises(
            SyncError, match="policy 'solver', version 1, engine 'e0': the log-probabilities of 2 tokens"
        ):
            probe.check_probe(found, limit, policy="solver", version=1, engine="e0")


def test_probes_compare_the_same_tokens():
    with pytest.raises(SyncError, match="different tokens"):
        probe.compare_logprobs([np.zeros(3, np.float32)], [np.zeros(2, np.float32)])


def test_probe_takes_the_ends_of_rows(kit):
    rows = [*kit.rows(9, policy="solver"), *kit.rows(3, seed=1, policy="critic")]
    experience = kit.experience(rows, policies=("solver", "critic"))
    found = probe.sequences_from_experience(experience, "solver", window=160)
    whole = [[*row.prompt, *row.tokens][-probe.LENGTH :] for row in rows]
    assert [sequence.tolist() for sequence in found] == [whole[0], whole[2], whole[5], whole[8]]
    short = probe.sequences_from_experience(experience, "solver", window=20)
    assert [sequence.tolist() for sequence in short] == [
        sequence[-19:] for sequence in (whole[0], whole[2], whole[5], whole[8])
    ]
    assert len(probe.sequences_from_experience(experience, "critic", window=160)) == 3
    assert probe.sequences_from_experience(experience, "judge", window=160) == ()


def test_first_probe_comes_from_the_seed():
    one, again, other = (probe.sequences_from_seed(seed, vocabulary=50, window=20) for seed in (1, 1, 2))
    assert [len(sequence) for sequence in one] == [19] * probe.SEQUENCES
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])
    assert max(sequence.max() for sequence in one) < 50


# The order of a publish


class Learners:
    """A learner whose log-probabilities are the sum of its weights."""

    def __init__(self) -> None:
        self.now = weights()
        self.skip: str | None = None
        self.streams = 0

    async def weights(self, policy, version):
        self.streams += 1
        chosen = [(name, tensor) for name, tensor in self.now.items() if name != self.skip]
        self.sending = BucketSender(policy, version, chosen, 100)
        for bucket in iter(self.sending.next_bucket, None):
            await asyncio.sleep(0)
            yield bucket
        self.streams -= 1

    async def sent_record(self, policy):
        return self.sending.sent_record()

    async def transfer_to_all(self, policy, version):
        raise AssertionError("it reaches all engines or none")

    async def offload(self, *, keep_weights=False):
        self.left = not keep_weights

    async def logprobs(self, policy, sequences):
        return [
            np.full(len(sequence) - 1, sum(w.sum() for w in self.now.values()), np.float32) for sequence in sequences
        ]


class Engine:
    """A sampler that writes down what it is asked; `broken` holds what goes wrong, and is used up by it."""

    def __init__(self, name, calls, broken=()) -> None:
        self.name, self.calls, self.broken = name, calls, list(broken)
        self.held = weights()
        self.version, self.paused = 0, False

    def _call(self, what):
        self.calls.append((self.name, what))
        if self.broken and self.broken[0] == what:
            self.broken.pop(0)
            raise ActorLost(f"{self.name} died", actor=self.name)

    async def pause(self):
        self._call("pause")
        self.paused = True

    async def begin_load(self, policy, version, adapter):
        self._call("begin")
        self.arrivals, self.label, self.buckets = ReceivedTensors(TIED), version, []

    async def load_bucket(self, bucket):
        self._call("take")
        if "hang" in self.broken:
            await asyncio.sleep(3600)
        self.buckets.append(bucket)

    async def finish_load(self):
        self._call("finish")
        if self.broken[:1] == ["program"]:
            self.broken.pop(0)
            raise AssertionError("a wrong shape")
        loaded = dict(self.arrivals.tensors(map(ReceivedBucket.of, self.buckets)))
        if self.broken[:1] != ["stale"]:
            self.held, self.version = loaded, self.label
        names, checksums = tuple(self.arrivals.names), tuple(self.arrivals.checksums)
        return ReceivedWeights(names=names, checksums=checksums, version=self.label, seconds=0.0)

    async def sleep(self):
        self._call("sleep")

    async def wake(self, tag):
        self._call(f"wake {tag}")

    async def logprobs(self, policy, version, sequences):
        self._call("logprobs")
        total = sum(tensor.sum() for name, tensor in self.held.items() if name != "head")
        return [np.full(len(sequence) - 1, total, np.float32) for sequence in sequences]

    async def activate(self, policy, version):
        self._call("admit")
        self.paused = False


class Pool:
    def __init__(self, *engines, restart_s=0.0) -> None:
        self.engines, self.mended, self.restart_s = engines, 0, restart_s

    async def restart_lost(self):
        self.mended += 1
        await asyncio.sleep(self.restart_s)


def publisher(learners, *pools, deadline_s=20.0, **changes) -> Publisher:
    settings = {"tied": TIED, "probe_limit": probe.MAX_MEAN_NATS["float32"], **changes}
    routes = [
        WeightRoute(
            policy=policy, learners=learners, samplers=pool, tensors=NAMES, vocabulary=50, window=20, **settings
        )
        for policy, pool in zip(("solver", "critic"), pools, strict=False)
    ]
    return Publisher(routes, seed=0, deadline_s=deadline_s)


ORDER = ["pause", "begin", "take", "finish", "logprobs", "admit"]


def of(calls, name):
    """What one engine was asked, buckets in a row once."""
    return [what for what, _ in groupby(what for caller, what in calls if caller == name)]


async def test_publish_pauses_loads_verifies_and_resumes():
    calls = []
    one, other = Engine("e0", calls), Engine("e1", calls)
    learners = Learners()
    learners.now = weights(1.0)
    receipts = await publisher(learners, Pool(one, other)).publish({"solver": 3})
    assert of(calls, "e0") == of(calls, "e1") == ORDER
    # Every engine is verified before any samples again.
    assert max(calls.index((name, "logprobs")) for name in ("e0", "e1")) < min(
        calls.index((name, "admit")) for name in ("e0", "e1")
    )
    assert receipts["solver"].version == one.version == other.version == 3
    assert receipts["solver"].probe == 0.0 and receipts["solver"].checksum == learners.sending.sent_record().checksum
    assert torch.equal(one.held["head"], learners.now["embed"]) and torch.equal(
        other.held["norm"], learners.now["norm"]
    )


async def test_adapters_need_no_pause():
    calls = []
    await publisher(Learners(), Pool(Engine("e0", calls)), adapter={"r": 4}).publish({"solver": 1})
    assert of(calls, "e0") == ORDER[1:]


@pytest.mark.parametrize("at", ORDER)
async def test_failed_publish_is_retried_in_full(at):
    calls, learners = [], Learners()
    learners.now = weights(1.0)
    pool = Pool(Engine("e0", calls, broken=[at]), Engine("e1", calls))
    receipts = await publisher(learners, pool).publish({"solver": 1})
    assert receipts["solver"].version == 1 and pool.mended == 1
    assert of(calls, "e0")[-6:] == ORDER and of(calls, "e1")[-6:] == ORDER
    assert all(torch.equal(engine.held["norm"], learners.now["norm"]) for engine in pool.engines)
    assert learners.streams == 0, "a learner was left in the midst of sending"


@pytest.mark.parametrize("at", ORDER[:-1])
async def test_second_failure_raises_and_leaves_engines_paused(at):
    calls = []
    engine, other = Engine("e0", calls, broken=[at, at]), Engine("e1", calls)
    with pytest.raises(ActorLost, match="e0 died"):
        await publisher(Learners(), Pool(engine, other)).publish({"solver": 1})
    assert "admit" not in [what for _, what in calls]
    assert other.paused


async def test_engine_error_names_the_engine():
    engine = Engine("e0", [], broken=["program", "program"])
    with pytest.raises(SyncError, match="policy 'solver', engine 'e0': it failed to load") as caught:
        await publisher(Learners(), Pool(engine)).publish({"solver": 1})
    assert isinstance(caught.value.__cause__, AssertionError) and engine.paused


async def test_probe_finds_a_stale_engine_with_a_correct_record():
    learners, engine = Learners(), Engine("e0", [], broken=["stale"])
    learners.now = weights(1e-3)
    with pytest.raises(SyncError, match="engine 'e0': the log-probabilities of 72 tokens differ"):
        await publisher(learners, Pool(engine)).publish({"solver": 1})
    assert engine.paused


async def test_missing_tensor_stops_a_publish():
    calls, learners = [], Learners()
    learners.skip = "layer.1"
    with pytest.raises(SyncError, match=r"did not send layer\.1"):
        await publisher(learners, Pool(Engine("e0", calls))).publish({"solver": 1})
    assert "finish" not in of(calls, "e0") and "admit" not in of(calls, "e0")


async def test_hanging_publish_says_what_it_waited_for():
    engine = Engine("e1", [], broken=["hang"])
    with pytest.raises(SyncError, match=r"within 0\.2 s .*engine 'e1' to take weights \(policy 'solver'\)$"):
        await publisher(Learners(), Pool(Engine("e0", []), engine), deadline_s=0.2).publish({"solver": 1})
    assert engine.paused


async def test_a_restart_takes_none_of_the_time_of_a_publish():
    """It has a deadline of its own, and takes minutes where a model is large."""
    slow = Pool(Engine("e0", [], broken=["take"]), restart_s=0.6)
    receipts = await publisher(Learners(), slow, deadline_s=0.3).publish({"solver": 1})
    assert receipts["solver"].version == 1 and slow.mended == 1


async def test_a_publish_that_hangs_after_a_restart_ends():
    slow = Pool(Engine("e0", [], broken=["take", "hang"]), restart_s=0.6)
    with pytest.raises(SyncError, match=r"within 0\.3 s .*engine 'e0' to take weights"):
        await publisher(Learners(), slow, deadline_s=0.3).publish({"solver": 1})


async def test_policies_of_one_learner_group_are_sent_in_turn():
    calls, learners = [], Learners()
    pools = Pool(Engine("e0", calls)), Pool(Engine("e1", calls))
    receipts = await publisher(learners, *pools).publish({"solver": 1, "critic": 4})
    assert [name for name, _ in groupby(name for name, _ in calls)] == ["e0", "e1"]
    assert of(calls, "e0") == of(calls, "e1") == ORDER
    assert {policy: receipt.version for policy, receipt in receipts.items()} == {"solver": 1, "critic": 4}


async def test_refresh_sends_to_one_engine():
    calls, learners = [], Learners()
    learners.now = weights(2.0)
    one, other = Engine("e0", calls), Engine("e1", calls)
    await publisher(learners, Pool(one), Pool(other)).refresh("e1", {"solver": 2, "critic": 5})
    assert of(calls, "e0") == [] and of(calls, "e1") == ORDER
    assert other.version == 5 and torch.equal(other.held["norm"], learners.now["norm"])


async def test_later_probes_come_from_experience(kit):
    learners, asked = Learners(), []
    engine = Engine("e0", [])
    learners.now = weights(1.0)
    own = publisher(learners, Pool(engine))
    rows = kit.rows(2)
    own.take_probes_from(kit.experience(rows))
    logprobs = learners.logprobs

    async def listen(policy, sequences):
        asked.extend(sequence.tolist() for sequence in sequences)
        return await logprobs(policy, sequences)

    learners.logprobs = listen
    await own.publish({"solver": 1})
    assert asked == [[*row.prompt, *row.tokens][-19:] for row in rows]  # its window is 20


async def test_checkpoint_weights_have_no_probe():
    calls, learners = [], Learners()
    learners.logprobs = None
    receipts = await publisher(learners, Pool(Engine("e0", calls)), probe_limit=None).publish({"solver": 2})
    assert of(calls, "e0") == ["pause", "begin", "take", "finish", "admit"]
    assert receipts["solver"].probe is None and receipts["solver"].version == 2


# From GPU to GPU: the order of calls, and what is computed


async def test_colocated_publish_has_the_order_of_memory():
    calls, learners = [], Learners()
    engine = Engine("e0", calls)
    wake = engine.wake

    async def listen(tag):
        assert (tag == "kv_cache") == learners.left, "two at a time on one GPU"
        await wake(tag)

    engine.wake = listen
    await publisher(learners, Pool(engine), colocated=True).publish({"solver": 1})
    asleep = ["pause", "sleep"]
    assert of(calls, "e0") == [*asleep, "pause", "wake weights", *ORDER[1:4], "wake kv_cache", *ORDER[4:]]


WEIGHTS, STATES, KEYS = 8, 48, 20  # GB


class Gpu:
    """A ledger of what is on a GPU; who takes more than there is ends the test."""

    def __init__(self, size) -> None:
        self.size, self.held = size, {}

    def hold(self, who, size) -> None:
        before = self.held.get(who, 0)
        self.held[who] = size
        assert size <= before or sum(self.held.values()) <= self.size, f"out of memory: {self.held}"


class SharingLearners(Learners):
    """Learners of two policies on a GPU: those of a policy that are asked for come, as ranks bring what is away."""

    def __init__(self, gpu) -> None:
        super().__init__()
        self.gpu, self.here = gpu, 0
        self._hold(WEIGHTS + STATES)

    def _hold(self, each) -> None:
        self.each = each
        for policy in ("solver", "critic"):
            self.gpu.hold(f"learner {policy}", each)

    async def weights(self, policy, version):
        self.gpu.hold(f"learner {policy}", max(self.each, WEIGHTS))
        async for bucket in super().weights(policy, version):
            yield bucket
        self.gpu.hold(f"learner {policy}", self.each)

    async def offload(self, *, keep_weights=False):
        self._hold(WEIGHTS if keep_weights else 0)

    async def logprobs(self, policy, sequences):
        self.gpu.hold(f"learner {policy}", max(self.each, WEIGHTS))
        found = await super().logprobs(policy, sequences)
        self.gpu.hold(f"learner {policy}", self.each)
        return found


class SharingEngine(Engine):
    """An engine on that GPU; it starts with all its memory."""

    def __init__(self, name, calls, gpu, broken=()) -> None:
        super().__init__(name, calls, broken)
        self.gpu, self.parts = gpu, {"weights": 0, "kv_cache": 0}

    def _hold(self, **parts) -> None:
        self.parts |= parts
        self.gpu.hold(self.name, sum(self.parts.values()))

    def start(self) -> None:
        self._hold(weights=WEIGHTS, kv_cache=KEYS)

    async def sleep(self):
        await super().sleep()
        assert self.paused, "requests are under way"
        self._hold(weights=0, kv_cache=0)

    async def wake(self, tag):
        await super().wake(tag)
        self._hold(**{tag: WEIGHTS if tag == "weights" else KEYS})

    async def finish_load(self):
        assert self.parts["weights"], "nowhere to load to"
        return await super().finish_load()

    async def logprobs(self, policy, version, sequences):
        assert all(self.parts.values())
        return await super().logprobs(policy, version, sequences)


class SharingPool(Pool):
    async def restart_lost(self):
        await super().restart_lost()
        for engine in self.engines:
            engine.start()


def sharing(broken=()):
    """Two policies that have just learned, on a GPU where from now on no more fits than while agents sample."""
    gpu, calls = Gpu(2 * (WEIGHTS + STATES)), []
    engines = [SharingEngine("e0", calls, gpu), SharingEngine("e1", calls, gpu, broken)]
    learners = SharingLearners(gpu)
    gpu.size = 2 * (WEIGHTS + KEYS)
    return publisher(learners, *map(SharingPool, engines), colocated=True), gpu, calls, learners


async def test_colocated_publish_takes_no_more_memory_than_sampling():
    own, gpu, calls, _ = sharing()
    receipts = await own.publish({"solver": 3, "critic": 4})
    assert {policy: receipt.version for policy, receipt in receipts.items()} == {"solver": 3, "critic": 4}
    assert gpu.held == {"learner solver": 0, "learner critic": 0, "e0": WEIGHTS + KEYS, "e1": WEIGHTS + KEYS}
    # Keys and values come back only once every policy was sent.
    assert calls.index(("e0", "wake kv_cache")) > calls.index(("e1", "finish"))


@pytest.mark.parametrize("at", ["wake weights", "take", "finish", "wake kv_cache", "logprobs", "admit"])
async def test_colocated_retry_frees_memory_first(at):
    own, gpu, _, _ = sharing(broken=[at])
    receipts = await own.publish({"solver": 1, "critic": 1})
    assert len(receipts) == 2
    assert gpu.held["learner critic"] == 0 and gpu.held["e1"] == WEIGHTS + KEYS


async def test_colocated_refresh_sends_to_all_engines():
    own, gpu, _, learners = sharing()
    learners._hold(0)
    for pool in {route.samplers for route in own._routes.values()}:
        for engine in pool.engines:
            engine.start()
    receipts = await own.refresh("e1", {"solver": 2, "critic": 2})
    assert set(receipts) == {"solver", "critic"}, "who slept forgot its weights"
    assert gpu.held["e0"] == gpu.held["e1"] == WEIGHTS + KEYS


async def test_gpu_transfer_replaces_buckets():
    calls, learners, loaded = [], Learners(), []
    engine = Engine("e0", calls)
    taker = vllm_transfer.GpuReceiver(
        lambda method, arguments: loaded.append((method, arguments)), lambda version: loaded.append(version)
    )
    engine.finish_load = no_wait(taker.received_record)

    async def transfer(policy, version):
        client = vllm_transfer.TransferClient(
            lambda method, arguments: taker.handle_call(method, arguments[0]), 1, None
        )
        client.version = version
        client.start_weight_update()
        client.update_weights({"names": list(NAMES[:2])})
        client.update_weights({"names": list(NAMES[2:])})
        client.finish_weight_update()
        return SentWeights(policy=policy, version=version, names=NAMES, checksums=("",) * len(NAMES), bytes=60)

    receipts = await publisher(learners, Pool(engine), transfer=transfer, tied={}).publish({"solver": 8})
    assert receipts["solver"].version == 8
    assert of(calls, "e0") == ["pause", "logprobs", "admit"]
    assert [entry if isinstance(entry, int) else entry[0] for entry in loaded] == [
        "start_weight_update", "update_weights", "update_weights", "finish_weight_update", 8,
    ]  # fmt: skip


async def test_refresh_of_one_engine_uses_buckets():
    calls, learners = [], Learners()
    own = publisher(learners, Pool(Engine("e0", calls), Engine("e1", calls)), transfer=learners.transfer_to_all)
    await own.refresh("e1", {"solver": 2})
    assert of(calls, "e1") == ORDER and of(calls, "e0") == []


class Group:
    def __init__(self) -> None:
        self.calls, self.breaks = [], False

    async def connect(self, policy, transport, engines, workers):
        self.calls.append(("connect", policy, transport, engines, workers))

    async def transfer(self, policy, version):
        self.calls.append(("transfer", policy, version))
        if self.breaks:
            raise ActorLost("a worker died", actor="e0")


async def test_gpu_transfer_reconnects_after_a_restart_or_failure():
    group, engines = Group(), ["e0", "e1"]
    own = gpu_transfer.GpuTransfer("nccl", group, lambda: engines, [1, 2])
    for version in (1, 2):
        await own.transfer("solver", version)
    engines[0] = "e0 again"
    group.breaks = True
    with pytest.raises(ActorLost):
        await own.transfer("solver", 3)
    group.breaks = False
    await own.transfer("solver", 3)
    assert [call[0] for call in group.calls] == ["connect", *["transfer"] * 2, *["connect", "transfer"] * 2]
    assert group.calls[0] == ("connect", "solver", "nccl", ("e0", "e1"), (1, 2))


def no_wait(call):
    async def answer():
        return call()

    return answer


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_every_worker_has_a_rank_of_its_own(workers):
    rendezvous = vllm_transfer.TransferRendezvous(host="h", port=1, workers=tuple(workers))
    ranks = [
        offset + rank for offset, count in zip(rendezvous.rank_offsets, workers, strict=True) for rank in range(count)
    ]
    assert sorted([0, *ranks]) == list(range(rendezvous.world_size))


def test_each_engine_gets_its_rank_offset():
    told = []
    client = vllm_transfer.TransferClient(lambda method, arguments: told.append((method, arguments)), 3, (1, 3, 4))
    client.init_weight_transfer_engine({"rank_offset": 1, "packed": True})
    assert told == [
        ("init_weight_transfer_engine", [{"init_info": {"rank_offset": at, "packed": True}} for at in (1, 3, 4)])
    ]


@pytest.mark.parametrize(("rows", "expected"), [(10, 1 << 30), (600_000, 600_000 * 1024 * 2)])
def test_a_buffer_has_room_for_the_largest_tensor(rows, expected):
    metas = [
        vllm_transfer.TensorMeta("norm", torch.float32, (64,)),
        vllm_transfer.TensorMeta("embed", torch.bfloat16, (rows, 1024)),
    ]
    assert vllm_transfer.buffer_bytes(metas) == expected
