"""Candidate layouts: which policies share learners and samplers, and on which slots, the best layouts first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from mappa_core.engine import PolicySpec
from mappa_engine.cluster.placement.resources import Device, DeviceSlot
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
class CandidateLayout:
    """Learner groups and sampler pools with their slots; they may not fit into memory."""

    groups: tuple[GroupPlacement, ...]
    pools: tuple[PoolPlacement, ...]

    @property
    def slots(self) -> frozenset[int]:
        """Indices of the slots in use."""
        learning = (slot for group in self.groups for slot in group.slots)
        return frozenset((*learning, *(slot for pool in self.pools for engine in pool.engines for slot in engine)))

    def with_compact_slots(self) -> CandidateLayout:
        """Return the layout with the slots in use renumbered from 0, in order."""
        new = {slot: number for number, slot in enumerate(sorted(self.slots))}
        return CandidateLayout(
            groups=tuple(replace(one, slots=tuple(new[slot] for slot in one.slots)) for one in self.groups),
            pools=tuple(
                replace(one, engines=tuple(tuple(new[slot] for slot in engine) for engine in one.engines))
                for one in self.pools
            ),
        )

    @property
    def sampling_slots(self) -> int:
        """Number of slots with an engine."""
        return len({slot for pool in self.pools for engine in pool.engines for slot in engine})

    @property
    def max_engines_per_slot(self) -> int:
        """Maximum number of engines on one slot."""
        return max(Counter(slot for pool in self.pools for engine in pool.engines for slot in engine).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUnit:
    """Policies that are always placed together: they share a learner's base model, or a served model."""

    name: str
    model: str
    policies: tuple[str, ...]
    full: bool
    """Whether it is a policy with weights of its own."""


def learner_units(policies: Sequence[PolicySpec]) -> tuple[PolicyUnit, ...]:
    """Group trained policies for learners: each `full` policy alone, `lora` policies of one model on one base."""
    return _group_policies([one for one in policies if one.trained], {})


def sampler_units(policies: Sequence[PolicySpec]) -> tuple[PolicyUnit, ...]:
    """Group policies for samplers: each `full` one alone; per model all `lora` ones and unchanged `frozen` ones."""
    return _group_policies(policies, {one.name: one.start for one in policies if one.kind == "frozen"})


def _group_policies(policies: Sequence[PolicySpec], starts: dict[str, Path | None]) -> tuple[PolicyUnit, ...]:
    members: dict[tuple[str, ...], list[PolicySpec]] = {}
    for one in policies:
        own = ("full", one.name) if one.kind == "full" else ("base", one.model, str(starts.get(one.name) or ""))
        members.setdefault(own, []).append(one)
    return tuple(
        PolicyUnit(
            name=together[0].name if len(together) == 1 else f"{together[0].name}+{len(together) - 1}",
            model=together[0].model,
            policies=tuple(one.name for one in together),
            full=together[0].kind == "full",
        )
        for together in members.values()
    )


def candidate_layouts(
    slots: Sequence[DeviceSlot],
    units: Sequence[PolicyUnit],
    pools: Sequence[PolicyUnit],
    options: ClusterOptions,
    *,
    density: int = 1,
) -> Iterator[CandidateLayout]:
    """Yield candidate layouts, the best first; none where there are too few slots.

    All learners form one group, so that no GPU waits for the policy with the most data; layouts with separate GPUs for
    each are tried where that does not fit into memory. `density` is the number of engines on a GPU that samples, where
    `options.samplers` is `auto`.
    """
    device = slots[0].device
    if not units:
        blocks = _blocks(range(len(slots)), slots, options)
        served = _assign_engines(pools, blocks, options, device, density) if blocks else ()
        yield from [CandidateLayout(groups=(), pools=served)] if served else ()
    elif options.placement == "colocated" or device == "cpu":
        yield from _colocated(slots, units, pools, options, density)
    else:
        yield from _separate(slots, units, pools, options, density)


def _colocated(
    slots: Sequence[DeviceSlot],
    units: Sequence[PolicyUnit],
    pools: Sequence[PolicyUnit],
    options: ClusterOptions,
    density: int,
) -> Iterator[CandidateLayout]:
    """Yield a layout with learners on `learner_ranks` slots and samplers on all, or optionally on the other CPUs."""
    device = slots[0].device
    ranks = options.learner_ranks or (len(slots) if device == "gpu" else 1)
    if ranks > len(slots):
        return
    apart = options.placement == "separate" and ranks < len(slots)
    # CUDA shares memory within a GPU alone: weights that travel so reach only engines beside a learner.
    shared = device == "gpu" and options.transport in ("auto", "ipc") and any(one.full for one in pools)
    blocks = _blocks(range(ranks if apart else 0, ranks if shared else len(slots)), slots, options)
    if blocks:
        yield CandidateLayout(
            groups=(_shared_group(units, range(ranks)),),
            pools=_assign_engines(pools, blocks, options, device, density),
        )


def _separate(
    slots: Sequence[DeviceSlot],
    units: Sequence[PolicyUnit],
    pools: Sequence[PolicyUnit],
    options: ClusterOptions,
    density: int,
) -> Iterator[CandidateLayout]:
    """Yield layouts with learners on the first slots and samplers on the last: those with the fewest idle GPUs first.

    Then, with a given number of engines, those with the fewest on one GPU; otherwise those with as many GPUs that learn
    as sample.
    """
    # A node is split into engines from its end, so that left-over slots lie next to the learners'.
    blocks = _blocks(range(len(slots)), slots, options, from_end=True)
    most = options.samplers * len(pools) if isinstance(options.samplers, int) else len(blocks)
    candidates: list[CandidateLayout] = []
    for count in range(1, min(most, len(blocks)) + 1):
        chosen = blocks[-count:]
        taken = {slot for block in chosen for slot in block}
        free = [slot for slot in range(len(slots)) if slot not in taken]
        served = _assign_engines(pools, chosen, options, "gpu", density)
        candidates += [
            CandidateLayout(groups=groups, pools=served) for groups in _groups(free, units, options.learner_ranks)
        ]
    by_density = isinstance(options.samplers, int)
    yield from sorted(
        candidates,
        key=lambda one: (
            -len(one.slots),
            one.max_engines_per_slot if by_density else abs(len(one.slots) - 2 * one.sampling_slots),
            len(one.groups),
        ),
    )


def _groups(
    free: Sequence[int], units: Sequence[PolicyUnit], ranks: int | None
) -> Iterator[tuple[GroupPlacement, ...]]:
    """Yield all policies in one group, then each unit in its own group, if the slots suffice."""
    together, each = ranks or len(free), ranks or len(free) // len(units)
    if 0 < together <= len(free):
        yield (_shared_group(units, free[:together]),)
    if len(units) > 1 and 0 < each * len(units) <= len(free):
        starts = range(0, each * len(units), each)
        yield tuple(
            _group(unit.name, (unit,), free[start : start + each]) for unit, start in zip(units, starts, strict=True)
        )


def _shared_group(units: Sequence[PolicyUnit], slots: Sequence[int]) -> GroupPlacement:
    return _group("learners", units, slots)


def _group(name: str, units: Sequence[PolicyUnit], slots: Sequence[int]) -> GroupPlacement:
    return GroupPlacement(
        name=name, policies=tuple(policy for unit in units for policy in unit.policies), slots=tuple(slots)
    )


def _blocks(
    numbers: range, slots: Sequence[DeviceSlot], options: ClusterOptions, *, from_end: bool = False
) -> list[tuple[int, ...]]:
    """Split slots into blocks of `tensor_parallel` slots on one node."""
    size, blocks = options.tensor_parallel, []
    for _, members in groupby(numbers, key=lambda number: slots[number].host):
        own = list(members)
        rest = len(own) % size if from_end else 0
        blocks += [tuple(own[start : start + size]) for start in range(rest, len(own) - size + 1, size)]
    return blocks


def _assign_engines(
    pools: Sequence[PolicyUnit],
    blocks: Sequence[tuple[int, ...]],
    options: ClusterOptions,
    device: Device,
    density: int,
) -> tuple[PoolPlacement, ...]:
    """Assign engines to blocks round robin, those of one pool to different blocks while there are any."""
    if isinstance(options.samplers, int):
        counts = [options.samplers] * len(pools)
    elif device == "cpu":
        counts = [1] * len(pools)
    else:
        each, more = divmod(density * len(blocks), len(pools))
        counts = [max(1, each + (place < more)) for place in range(len(pools))]
    numbers = iter(range(sum(counts)))
    return tuple(
        PoolPlacement(
            name=one.name,
            model=one.model,
            policies=one.policies,
            engines=tuple(blocks[next(numbers) % len(blocks)] for _ in range(count)),
        )
        for one, count in zip(pools, counts, strict=True)
    )
