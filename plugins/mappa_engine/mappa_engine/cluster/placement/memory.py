"""Memory of every actor of a layout on its slots, in every phase of an iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mappa_core.engine import PolicySpec, TrainSection
from mappa_engine import memory_estimate
from mappa_engine.cluster.placement.layouts import GroupPlacement, PoolPlacement
from mappa_engine.cluster.placement.resources import Device
from mappa_engine.memory_estimate import MemoryParts
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import PlacedOptions

Phase = Literal["learning", "syncing", "sampling"]
PHASES: tuple[Phase, ...] = ("learning", "syncing", "sampling")
ActorRole = Literal["learner", "sampler"]

CONTEXT_BYTES = 750_000_000
"""Memory of a process on a GPU beside torch's own: the CUDA context with the kernels that it loaded (0.5 to 0.6 GB),
workspaces of cuBLAS and buffers of NCCL. An estimate."""
ALLOCATOR_SHARE = 0.3
"""What torch's caching allocator keeps of a learner's GPU beyond its tensors, as a share of those that come and go:
blocks of one size serve no tensor of another. Chosen by the one measurement that there is: two trainings at once took
28.5 GB of an H200, of which everything else here explains 25.6 (docs/engines.md)."""
DEEPSPEED_BUCKET = 50_000_000
"""Elements that DeepSpeed reduces or gathers at a time (`reduce_bucket_size` and others)."""
ALL_REDUCE_ELEMENTS = 500_000_000
"""Elements that DeepSpeed, where gradients are not sharded, copies into one piece to sum them over the ranks
(`MEMORY_OPT_ALLREDUCE_SIZE`)."""
SUB_GROUP = 1_000_000_000
"""Parameters of which DeepSpeed's stage 3 steps at a time (`sub_group_size`)."""
MAX_LIVE_PARAMETERS = 1_000_000_000
"""Maximum number of parameters that DeepSpeed's stage 3 gathers at a time."""
SYNC_BUCKET_BYTES = 1 << 30
"""Minimum buffer for weights in transfer to a sampler; a larger tensor needs more."""
VLLM_STEP_TOKENS = 2048
"""Tokens of one step of vLLM (`SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS`), beside one of each request."""
VLLM_PROMPT_ROWS = 1024
"""Tokens of a prompt whose logits vLLM computes at once (`CHUNK_SIZE` of its prompt_logprob)."""
VLLM_GRAPH_BYTES = 40_000_000
"""CUDA graphs of vLLM per layer, for its 51 sizes of a batch; an estimate from logs that its users published, 0.2 to
1.6 GB in all. They stay while an engine sleeps."""
PROCESS_BYTES: Mapping[Device, int] = {"gpu": 2_000_000_000, "cpu": 800_000_000}
"""Host memory of a process and its libraries: with CUDA an estimate, without it measured by `make test-shapes`."""

DRIVER_BYTES = 500_000_000
"""Memory of the process that plays the team and calls the others; measured on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLoad:
    """Memory of one actor on one slot: bytes by part in each phase, and bytes of host memory."""

    slot: int
    actor: str
    role: ActorRole
    by_phase: Mapping[Phase, MemoryParts]
    host: Mapping[str, int] = field(default_factory=dict)
    """Host memory by purpose, beside what a CPU computes with: in bytes."""

    def bytes_at(self, phase: Phase) -> int:
        """Sum all parts in a phase."""
        return memory_estimate.total_bytes(self.by_phase[phase])

    @property
    def host_bytes(self) -> int:
        """Sum of the host memory."""
        return sum(self.host.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInputs:
    """Inputs of the memory estimate. `train` is None without training."""

    policies: Mapping[str, PolicySpec]
    shapes: Mapping[str, ModelShape]
    options: PlacedOptions
    device: Device
    train: TrainSection | None
    dtype: str = field(init=False)

    def __post_init__(self) -> None:
        chosen = self.options.dtype
        automatic = "bfloat16" if self.device == "gpu" else "float32"
        object.__setattr__(self, "dtype", automatic if chosen == "auto" else chosen)

    @property
    def colocated(self) -> bool:
        """Whether learners and samplers share GPUs in turns."""
        return self.device == "gpu" and self.options.placement == "colocated"

    def window(self, shape: ModelShape) -> int:
        """Return the context window of a sampler: maximum tokens of prompt plus action."""
        return self.options.max_model_len or shape.window

    def max_pass_tokens(self, shape: ModelShape) -> int:
        """Return the maximum tokens of a learner's pass: a sequence longer than the budget is a pass of its own."""
        assert self.train is not None
        return max(min(self.train.micro_tokens, self.options.pass_tokens), self.window(shape))

    @property
    def packed(self) -> bool:
        """Whether attention needs a mask that keeps sequences apart."""
        return self.options.packed_tokens is not None


def compute_loads(
    groups: Sequence[GroupPlacement], pools: Sequence[PoolPlacement], inputs: MemoryInputs
) -> Iterator[MemoryLoad]:
    """Yield the memory of every learner rank and of every tensor-parallel part of an engine."""
    for group in groups:
        load = _learner(group, inputs)
        yield from (replace(load, slot=slot) for slot in group.slots)
    for pool in pools:
        load = _sampler(pool, inputs)
        for number, engine in enumerate(pool.engines, start=1):
            name = load.actor if len(pool.engines) == 1 else f"{load.actor} {number}"
            yield from (replace(load, slot=slot, actor=name) for slot in engine)


def _learner(group: GroupPlacement, inputs: MemoryInputs) -> MemoryLoad:
    """Compute the memory of one rank. Its policies take turns, and the states of all stay in place, but for gradients
    where DeepSpeed lets go of them after a step."""
    options, ranks = inputs.options, len(group.slots)
    policies = [inputs.policies[name] for name in group.policies]
    whole = [inputs.shapes[spec.model] for spec in policies if spec.kind == "full"]
    bases = {spec.model: inputs.shapes[spec.model] for spec in policies if spec.kind == "lora"}
    each = [
        memory_estimate.full_training_memory(shape, inputs.dtype, zero=options.zero, ranks=ranks) for shape in whole
    ]
    sharded = memory_estimate.add_parts(*each)
    if whole and options.zero == 2:
        # Its gradients are made in a backward pass and dropped in the step; the other stages keep theirs.
        sharded["gradients"] = max(parts["gradients"] for parts in each)
    offloaded = sharded.pop("optimiser", 0) if options.offload_optimizer else 0
    adapters = memory_estimate.add_parts(
        {"weights": sum(memory_estimate.weight_bytes(shape, inputs.dtype) for shape in bases.values())},
        *(
            memory_estimate.adapter_memory(
                inputs.shapes[spec.model].adapter(spec.lora), own_reference=spec.reference is not None
            )
            for spec in policies
            if spec.lora is not None
        ),
    )
    states = memory_estimate.add_parts(sharded, adapters)
    references = memory_estimate.reference_bytes(
        (spec for spec in policies if spec.kind == "full"), inputs.shapes, inputs.dtype
    )
    work = _learner_peak(states, policies, references, ranks, inputs)
    wire, context = _transfer_buffers(whole, inputs), _cuda_context(inputs)
    # Adapters are sent from where they are; of full weights all but the weights themselves is on the host by then. Of
    # what was sent, learners then compute some log-probabilities, with which samplers are compared.
    probe = _scoring_activations(policies, inputs) if whole else {}
    sent = memory_estimate.add_parts(_only(sharded, "weights"), adapters, wire, probe, context)
    # Beside learning, as torch keeps what activations took on a GPU; the host has it back.
    kept = inputs.device == "gpu"
    still: MemoryParts = {part: size for part, size in work.items() if kept or part != "activations"}
    transferring = memory_estimate.add_parts(still, wire)
    by_phase = _by_phase(inputs, learning=work, syncing=sent, sampling=context, always=work, transferring=transferring)
    host = {"optimiser": offloaded, "process": PROCESS_BYTES[inputs.device]}
    if inputs.device == "gpu":
        host["references"] = references
    if inputs.colocated:
        host["states while agents sample"] = sum(size for part, size in states.items() if part != "gradients")
    if inputs.device == "gpu":
        host["copies at the start"] = max(0, _start_bytes(whole, bases, inputs) - sum(host.values()))
    return MemoryLoad(slot=0, actor=group.name, role="learner", by_phase=by_phase, host=host)


def _start_bytes(whole: Sequence[ModelShape], bases: Mapping[str, ModelShape], inputs: MemoryInputs) -> int:
    """Return the host memory of a rank that loads its policies: every base, and beside them the one copy to be trained
    that is not on the GPU yet, whole whatever is sharded later."""
    models = {shape.model: memory_estimate.weight_bytes(shape, inputs.dtype) for shape in (*whole, *bases.values())}
    copy = max((models[shape.model] for shape in whole), default=0)
    return PROCESS_BYTES[inputs.device] + sum(models.values()) + copy


def _only(parts: MemoryParts, name: memory_estimate.MemoryPart) -> MemoryParts:
    return {name: parts[name]} if name in parts else {}


def _learner_peak(
    states: MemoryParts, policies: Sequence[PolicySpec], references: int, ranks: int, inputs: MemoryInputs
) -> MemoryParts:
    """Return the largest of three: the passes of an update; its gradients as DeepSpeed accumulates them, when there
    are no activations; scoring against the reference, which is on a GPU only then."""
    whole = [inputs.shapes[spec.model] for spec in policies if spec.kind == "full"]
    passing = memory_estimate.add_parts(
        states,
        {
            "activations": max(_update_activations(spec, inputs) for spec in policies),
            "buffers": max((_pass_buffers(shape, inputs) for shape in whole), default=0),
        },
    )
    stepping = memory_estimate.add_parts(
        states, {"buffers": max((_step_buffers(shape, ranks, inputs) for shape in whole), default=0)}
    )
    if inputs.device == "cpu":
        most = max(passing, stepping, key=memory_estimate.total_bytes)
        return memory_estimate.add_parts(most, {"reference": references})
    still: MemoryParts = {name: size for name, size in states.items() if name != "gradients"}
    scoring = memory_estimate.add_parts(still, _scoring_activations(policies, inputs), {"reference": references})
    most = max((_with_allocator(parts) for parts in (passing, stepping, scoring)), key=memory_estimate.total_bytes)
    return memory_estimate.add_parts(most, _cuda_context(inputs))


def _with_allocator(parts: MemoryParts) -> MemoryParts:
    """Add what torch keeps beyond the tensors of a learner."""
    come_and_go = sum(size for part, size in parts.items() if part in ("activations", "buffers", "gradients"))
    return {**parts, "allocator": int(ALLOCATOR_SHARE * come_and_go)}


def _update_activations(spec: PolicySpec, inputs: MemoryInputs) -> int:
    assert inputs.train is not None
    shape, again = inputs.shapes[spec.model], inputs.options.gradient_checkpointing
    tokens = inputs.max_pass_tokens(shape)
    return memory_estimate.activation_bytes(
        shape, inputs.dtype, tokens, saved="inputs" if again else "all", mask=inputs.packed, lora=spec.lora
    ) + memory_estimate.logit_bytes(shape, tokens, memory_estimate.trained_logit_copies(inputs.train))


def _scoring_activations(policies: Sequence[PolicySpec], inputs: MemoryInputs) -> MemoryParts:
    sizes = []
    for shape in {spec.model: inputs.shapes[spec.model] for spec in policies}.values():
        tokens = inputs.max_pass_tokens(shape)
        layer = memory_estimate.activation_bytes(shape, inputs.dtype, tokens, saved="nothing", mask=inputs.packed)
        sizes.append(layer + memory_estimate.logit_bytes(shape, tokens, memory_estimate.SCORED_LOGIT_COPIES))
    return {"activations": max(sizes)}


def _pass_buffers(shape: ModelShape, inputs: MemoryInputs) -> int:
    """Return what a backward pass holds beside activations: DeepSpeed's bucket of gradients and those on their way into
    it, under ZeRO-3 gathered weights; and of the head, which torch sums over chunks, the gradient twice."""
    width, number = memory_estimate.BYTES_PER_NUMBER[inputs.dtype], shape.parameters
    gathered = min(number, MAX_LIVE_PARAMETERS) + min(number, DEEPSPEED_BUCKET) if inputs.options.zero == 3 else 0
    head = 2 * shape.vocabulary * shape.hidden
    return width * (2 * min(number, DEEPSPEED_BUCKET) + gathered + head)


def _step_buffers(shape: ModelShape, ranks: int, inputs: MemoryInputs) -> int:
    """Return what DeepSpeed holds at the end of a backward pass and in a step, when there are no activations: at least
    the gradient of the largest tensor in float64, of which it takes the norm."""
    zero, width, number = inputs.options.zero, memory_estimate.BYTES_PER_NUMBER[inputs.dtype], shape.parameters
    bucket, own = width * min(number, DEEPSPEED_BUCKET), memory_estimate.FLOAT32_BYTES * -(-number // ranks)
    norm = 2 * memory_estimate.FLOAT32_BYTES * shape.largest
    if zero == 3:  # gradients of a group of parameters, in one piece
        return bucket + max(norm, min(own, memory_estimate.FLOAT32_BYTES * SUB_GROUP))
    if zero and width == memory_estimate.FLOAT32_BYTES:  # new gradients beside those that they are added to
        return bucket + max(norm, own + 2 * width * shape.largest)
    if zero < 2:
        return max(norm, width * min(number, ALL_REDUCE_ELEMENTS))
    return bucket + norm


def _sampler(pool: PoolPlacement, inputs: MemoryInputs) -> MemoryLoad:
    """Compute the memory of one tensor-parallel part of an engine."""
    shape, pieces = inputs.shapes[pool.model], inputs.options.tensor_parallel
    policies = [inputs.policies[name] for name in pool.policies]
    width = memory_estimate.BYTES_PER_NUMBER[inputs.dtype]
    # Adapters of an old version stay until its last request is done.
    versions = 2 + inputs.options.max_staleness
    adapters = versions * sum(shape.adapter(spec.lora) for spec in policies if spec.lora is not None)
    weights: MemoryParts = {
        "weights": memory_estimate.weight_bytes(shape, inputs.dtype, pieces=pieces) + width * adapters
    }
    # What an engine keeps while it sleeps.
    asleep = _cuda_context(inputs)
    work: MemoryParts = {"kv cache": inputs.options.kv_cache_mb << 20}
    if inputs.device == "gpu":
        asleep |= {
            "graphs": VLLM_GRAPH_BYTES * shape.layers,
            # Of every request, how often it had every token (`PenaltiesState`, an int32 each).
            "workspace": 4 * inputs.options.max_batch * shape.vocabulary,
        }
        work["activations"] = _vllm_activations(shape, inputs)
    else:
        # On CPUs embedding and head are kept once more each, packed for the kernels, even where they are one tensor.
        work["workspace"] = 2 * width * shape.vocabulary * shape.hidden
    work = memory_estimate.add_parts(weights, work, asleep)
    full = [shape] if any(spec.kind == "full" for spec in policies) else []
    wire = _transfer_buffers(full, inputs)
    if full and inputs.device == "cpu":  # a new tensor and what is packed of it, beside those that they replace
        wire = memory_estimate.add_parts(wire, wire)
    by_phase: Mapping[Phase, MemoryParts] = dict.fromkeys(PHASES, work)
    if full:  # others hold a base that never changes, and stay where they are while learners compute
        sent = memory_estimate.add_parts(weights, wire, asleep)
        transferring = memory_estimate.add_parts(work, wire)
        by_phase = _by_phase(
            inputs, learning=asleep, syncing=sent, sampling=work, always=work, transferring=transferring
        )
    host = {"process": PROCESS_BYTES[inputs.device]}
    return MemoryLoad(slot=0, actor=f"sampler {pool.name}", role="sampler", by_phase=by_phase, host=host)


def _vllm_activations(shape: ModelShape, inputs: MemoryInputs) -> int:
    """Return the size of one layer of vLLM's largest step, and the larger of: the logits of a probe, as they are;
    those of a token of every request, and their float32 copy and log-probabilities."""
    width = memory_estimate.BYTES_PER_NUMBER[inputs.dtype]
    tokens = max(VLLM_STEP_TOKENS, inputs.options.max_batch)
    layer = memory_estimate.activation_bytes(shape, inputs.dtype, tokens, saved="nothing")
    sampled = inputs.options.max_batch * (width + 2 * memory_estimate.FLOAT32_BYTES)
    return layer + shape.vocabulary * max(VLLM_PROMPT_ROWS * width, sampled)


def _by_phase(
    inputs: MemoryInputs,
    *,
    learning: MemoryParts,
    syncing: MemoryParts,
    sampling: MemoryParts,
    always: MemoryParts,
    transferring: MemoryParts,
) -> Mapping[Phase, MemoryParts]:
    """Return the first three where learners and samplers take turns; else `always`, and `transferring` in transfers."""
    if inputs.colocated:
        return {"learning": learning, "syncing": syncing, "sampling": sampling}
    return {"learning": always, "syncing": transferring, "sampling": always}


def _transfer_buffers(shapes: Sequence[ModelShape], inputs: MemoryInputs) -> MemoryParts:
    """Return the buffers of full weights in transfer between a learner and a sampler; adapters go as files."""
    if not shapes:
        return {}
    largest = max(memory_estimate.BYTES_PER_NUMBER[inputs.dtype] * shape.largest for shape in shapes)
    return {"buffers": max(SYNC_BUCKET_BYTES, largest) if inputs.device == "gpu" else largest}


def _cuda_context(inputs: MemoryInputs) -> MemoryParts:
    return {"context": CONTEXT_BYTES} if inputs.device == "gpu" else {}
