"""A placement made into learner groups, sampler pools and the ways between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mappa_core.config.schema import TrainSection
from mappa_core.engine.adapters import PREFIX, SIDES, described
from mappa_core.engine.cluster import placement
from mappa_core.engine.cluster.fleet import Fleet, Slot
from mappa_core.engine.cluster.learners import LearnerGroup, Task
from mappa_core.engine.cluster.placement import ModelShape, Placement
from mappa_core.engine.cluster.samplers.pool import SamplerPool
from mappa_core.engine.cluster.samplers.remote import Deadlines, Seat
from mappa_core.engine.cluster.samplers.values import Setup
from mappa_core.engine.cluster.sync.direct import Direct
from mappa_core.engine.cluster.sync.probe import Limit
from mappa_core.engine.cluster.sync.publisher import Route
from mappa_core.engine.cluster.sync.sides import Learners
from mappa_core.engine.models import Reading, tensor_names, tied
from mappa_core.engine.options import ClusterOptions
from mappa_core.protocols import Lora, PolicySpec

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """All that is known before anything is started."""

    specs: Mapping[str, PolicySpec]
    readings: Mapping[str, Reading]
    """By model."""
    shapes: Mapping[str, ModelShape]
    placement: Placement
    options: ClusterOptions
    train: TrainSection | None
    seed: int

    @property
    def gpu(self) -> bool:
        """Whether learners and samplers compute on GPUs."""
        return self.placement.device == "gpu"

    @property
    def shared(self) -> bool:
        """Whether learners and samplers take turns on the same GPUs."""
        return self.gpu and self.options.placement == "colocated" and self.train is not None

    @property
    def transport(self) -> str:
        """How full weights reach samplers: store, nccl or ipc."""
        if self.options.transport != "auto":
            return self.options.transport
        if not self.gpu or self.train is None:
            return "store"
        return "ipc" if self.options.placement == "colocated" else "nccl"

    def window(self, model: str) -> int:
        """Tokens of the longest prompt and action of a sampler."""
        return self.options.window or self.readings[model].window

    def tied(self, model: str) -> dict[str, str]:
        """Of weights whose output head is the embedding: that it is one, by the embedding's name. From GPU to GPU it
        goes but once."""
        reading = self.readings[model]
        if self.transport != "store" or not tied(reading.config):
            return {}
        return {name: _HEAD for name in tensor_names(reading.place) if name.endswith(_EMBEDDING)}

    def share(self, slot: int) -> float:
        """What one actor gets of a slot: they are as many as there is room for."""
        return 1.0 / len(self.placement.on(slot))


class Building:
    """Starts what a plan says on the slots that were reserved for it."""

    def __init__(self, plan: Plan, fleet: Fleet, slots: Sequence[Slot]) -> None:
        self._plan = plan
        self._fleet = fleet
        self._slots = slots

    async def group(self, found: placement.LearnerGroup) -> LearnerGroup:
        """A group of learners, with its policies loaded."""
        plan = self._plan
        assert plan.train is not None  # there are no groups where nothing is learned
        task = Task(
            specs=tuple(plan.specs[name] for name in found.policies),
            train=plan.train,
            options=plan.options,
            dtype=plan.placement.dtype,
            gpu=plan.gpu,
            seed=plan.seed,
        )
        share = min(plan.share(slot) for slot in found.slots)
        return await LearnerGroup.open(
            found.name,
            self._fleet,
            task,
            slots=[self._slots[slot] for slot in found.slots],
            cpus=share,
            gpus=share if plan.gpu else 0.0,
        )

    def pool(self, found: placement.SamplerPool, refresh: Callable[[str], Awaitable[object]]) -> SamplerPool:
        """The engines of a model, not yet started."""
        plan, options = self._plan, self._plan.options
        return SamplerPool(
            self._fleet,
            self._setup(found),
            [self._seat(engine) for engine in found.engines],
            name=found.name,
            full=any(plan.specs[name].kind == "full" for name in found.policies),
            deadlines=Deadlines(start_s=options.start_s, sync_s=options.sync_s, call_s=options.call_s),
            refresh=refresh,
        )

    def _seat(self, slots: Sequence[int]) -> Seat:
        share = min(self._plan.share(slot) for slot in slots)
        return Seat(slot=self._slots[slots[0]], cpus=share, gpus=share if self._plan.gpu else 0.0)

    def _setup(self, found: placement.SamplerPool) -> Setup:
        plan, options = self._plan, self._plan.options
        reading = plan.readings[found.model]
        adapters = [one for name in found.policies if (one := plan.specs[name]).lora is not None]
        return Setup(
            model=reading.place,
            device="cuda" if plan.gpu else "cpu",
            dtype=plan.placement.dtype,
            window=plan.window(found.model),
            kv_cache_bytes=options.kv_cache_mb << 20,
            max_batch=options.max_batch,
            prefix_caching=options.prefix_caching,
            tensor_parallel=options.tensor_parallel,
            apart=options.deterministic,
            policies=tuple(one.name for one in adapters),
            lora_rank=max((one.lora.rank for one in adapters if one.lora is not None), default=0),
            # Requests under way keep the adapter that they began with.
            adapters=len(adapters) * (options.max_staleness + 2),
            tied=plan.tied(found.model),
            transport=plan.transport,
            bare=plan.train is None,
            sleeps=plan.shared,
            seed=plan.seed,
        )


def route(plan: Plan, policy: str, learners: Learners, pool: SamplerPool, *, probed: bool) -> Route:
    """The way of a policy's weights from learners to the engines that serve it."""
    spec, dtype = plan.specs[policy], plan.placement.dtype
    reading, shape = plan.readings[spec.model], plan.shapes[spec.model]
    names = tensor_names(reading.place)
    kind: dict[str, Any] = {"tied": plan.tied(spec.model), "shared": plan.shared}
    if spec.lora is not None:
        layers = _adapted(spec.lora, names, shape)
        names = frozenset(f"{PREFIX}{layer}.{side}.weight" for layer in layers for side in SIDES)
        kind = {"adapter": described(spec.lora, _last_parts(layers), base=spec.model)}
    elif isinstance(learners, LearnerGroup) and plan.transport != "store":
        kind["transfer"] = _direct(plan, learners, pool)
    return Route(
        policy=policy,
        learners=learners,
        samplers=pool,
        tensors=names,
        limit=Limit.of(dtype, plan.options.probe_limit) if probed else None,
        vocabulary=shape.vocabulary,
        window=plan.window(spec.model),
        **kind,
    )


def _adapted(lora: Lora, tensors: Collection[str], shape: ModelShape) -> list[str]:
    """Paths of the layers that an adapter changes, in order."""
    linear = {name for name, _ in shape.linears}
    chosen = linear if lora.targets is None else linear & set(lora.targets)
    layers = (name.removesuffix(".weight") for name in tensors if name.endswith(".weight"))
    return sorted(layer for layer in layers if layer.rpartition(".")[2] in chosen)


def _direct(plan: Plan, group: LearnerGroup, pool: SamplerPool) -> Any:
    """Sends from GPU to GPU. Untried on a GPU."""
    workers = [plan.options.tensor_parallel] * len(pool.engines)
    transport: Any = plan.transport
    return Direct(transport, group, lambda: [engine.actor.handle for engine in pool.engines], workers).transfer


def _last_parts(layers: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted({layer.rpartition(".")[2] for layer in layers}))
