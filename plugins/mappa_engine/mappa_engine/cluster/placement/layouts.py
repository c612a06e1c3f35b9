"""Layouts: which policies share learners and samplers, and on which slots, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from mappa_core.engine import PolicySpec
from mappa_engine.cluster.placement.resources import DeviceSlot
from mappa_engine.options import ClusterOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlacement:
    """A learner group that trains `policies` in turn; rank r is on `slots[r]`, all of them different."""

    name: str
    policies: tuple[str, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlacement:
    """Engines that serve `policies` with one model. Each of `engines` lists its tensor-parallel slots, on one node."""

    name: str
    model: str
    policies: tuple[str, ...]
    engines: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Learner groups and sampler pools with their slots; they may not fit into memory."""

    groups: tuple[GroupPlacement, ...]
    pools: tuple[PoolPlacement, ...]

    @property
    def slots(self) -> tuple[int, ...]:
        """Indices of the slots in use, in order."""
        learning = {slot for group in self.groups for slot in group.slots}
        return tuple(sorted(learning | {slot for pool in self.pools for engine in pool.engines for slot in engine}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Policies that are served by the same engines."""

    name: str
    model: str
    policies: tuple[str, ...]


def served_models(policies: Sequence[PolicySpec]) -> tuple[ServedModel, ...]:
    """Group policies for samplers: each `full` one alone; per model all `lora` ones and unchanged `frozen` ones."""
    members: dict[tuple[str | Path | None, ...], list[PolicySpec]] = {}
    for policy in policies:
        start = policy.start if policy.kind == "frozen" else None
        own = (policy.name,) if policy.kind == "full" else (policy.model, start)
        members.setdefault(own, []).append(policy)
    return tuple(
        ServedModel(
            name=together[0].name if len(together) == 1 else f"{together[0].name}+{len(together) - 1}",
            model=together[0].model,
            policies=tuple(policy.name for policy in together),
        )
        for together in members.values()
    )


def ordered_layouts(
    slots: Sequence[DeviceSlot], policies: Sequence[PolicySpec], options: ClusterOptions, *, learning: bool
) -> Iterator[Layout]:
    """Yield the layouts to try, in order; none where there are too few slots.

    First an engine of every served model on every GPU that samples, so that none is idle while one agent acts; then one
    engine on a GPU. Learners are one group, which trains its policies in turn: no GPU waits for the policy with the
    most data. With `placement: separate` half of the GPUs learn, unless the options say how many.
    """
    served = served_models(policies)
    trained = tuple(policy.name for policy in policies if policy.trained) if learning else ()
    full = any(policy.kind == "full" for policy in policies)
    ranks, blocks = _split(slots, len(served), options, learning=bool(trained), full=full)
    if not blocks or (trained and not ranks):
        return
    groups = (GroupPlacement(name="learners", policies=trained, slots=ranks),) if trained else ()
    counts = _engine_counts(slots, len(blocks), len(served), options)
    for count in dict.fromkeys(counts):
        yield Layout(groups=groups, pools=_assign_engines(served, blocks, count))


def _split(
    slots: Sequence[DeviceSlot], models: int, options: ClusterOptions, *, learning: bool, full: bool
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the slots of the learners' ranks, and those of engines, in blocks of `tensor_parallel`."""
    count, gpu, size = len(slots), slots[0].device == "gpu", options.tensor_parallel
    if not learning:
        return (), _blocks(range(count), slots, size)
    ranks = options.learner_ranks or (count if gpu and options.placement == "colocated" else 1)
    if ranks > count:
        return (), []
    if options.placement == "colocated" or (not gpu and ranks == count):
        # CUDA shares memory within a GPU alone: weights that travel so reach only engines beside a learner.
        beside = gpu and full and options.transport in ("auto", "ipc")
        return tuple(range(ranks)), _blocks(range(ranks if beside else count), slots, size)
    if not gpu:
        return tuple(range(ranks)), _blocks(range(ranks, count), slots, size)
    # A node is split into engines from its end, so that left-over slots lie next to the learners'.
    blocks = _blocks(range(count), slots, size, from_end=True)
    most = max(0, count - ranks) // size
    if isinstance(options.samplers, int):
        most = min(most, options.samplers * models)
    elif options.learner_ranks is None:
        most = min(most, max(1, count // (2 * size)))
    blocks = blocks[len(blocks) - min(most, len(blocks)) :]
    sampling = {slot for block in blocks for slot in block}
    free = [slot for slot in range(count) if slot not in sampling]
    return tuple(free[: options.learner_ranks]), blocks


def _blocks(numbers: range, slots: Sequence[DeviceSlot], size: int, *, from_end: bool = False) -> list[tuple[int, ...]]:
    """Split slots into blocks of `size` slots on one node."""
    blocks: list[tuple[int, ...]] = []
    for _, members in groupby(numbers, key=lambda number: slots[number].host):
        own = list(members)
        rest = len(own) % size if from_end else 0
        blocks += [tuple(own[start : start + size]) for start in range(rest, len(own) - size + 1, size)]
    return blocks


def _engine_counts(
    slots: Sequence[DeviceSlot], blocks: int, models: int, options: ClusterOptions
) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of engines of each served model, by layout."""
    if isinstance(options.samplers, int):
        return ((options.samplers,) * models,)
    if slots[0].device == "cpu":
        return ((1,) * models,)
    each, more = divmod(blocks, models)
    turns = tuple(max(1, each + (place < more)) for place in range(models))
    return ((blocks,) * models, turns)


def _assign_engines(
    served: Sequence[ServedModel], blocks: Sequence[tuple[int, ...]], counts: Sequence[int]
) -> tuple[PoolPlacement, ...]:
    """Assign engines to blocks round robin, those of one pool to different blocks while there are any."""
    numbers = iter(range(sum(counts)))
    return tuple(
        PoolPlacement(
            name=model.name,
            model=model.model,
            policies=model.policies,
            engines=tuple(blocks[next(numbers) % len(blocks)] for _ in range(count)),
        )
        for model, count in zip(served, counts, strict=True)
    )
