"""Who can share what, and which slots each could be given: all ways worth trying, the best first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from mappa_core.engine.cluster.placement.resources import Slot
from mappa_core.engine.options import ClusterOptions
from mappa_core.protocols import PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerGroup:
    """Ranks that train `policies` in turn; rank r is on `slots[r]`, all of them different."""

    name: str
    policies: tuple[str, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerPool:
    """Engines that serve `policies` with one model. Each of `engines` is the slots of its pieces, on one node."""

    name: str
    model: str
    policies: tuple[str, ...]
    engines: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Groups and pools with their slots; it may not fit."""

    groups: tuple[LearnerGroup, ...]
    pools: tuple[SamplerPool, ...]

    @property
    def slots(self) -> frozenset[int]:
        """Numbers of those that are given to anyone."""
        learning = (slot for group in self.groups for slot in group.slots)
        return frozenset((*learning, *(slot for pool in self.pools for engine in pool.engines for slot in engine)))

    def renumbered(self) -> Layout:
        """The same with its slots numbered from 0, in order, without those that nobody is given."""
        new = {slot: number for number, slot in enumerate(sorted(self.slots))}
        return Layout(
            groups=tuple(replace(one, slots=tuple(new[slot] for slot in one.slots)) for one in self.groups),
            pools=tuple(
                replace(one, engines=tuple(tuple(new[slot] for slot in engine) for engine in one.engines))
                for one in self.pools
            ),
        )

    @property
    def crowd(self) -> int:
        """The most engines on one slot."""
        return max(Counter(slot for pool in self.pools for engine in pool.engines for slot in engine).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Policies that cannot be apart: those that learn together, or that one model is served for."""

    name: str
    model: str
    policies: tuple[str, ...]


def learning_together(policies: Sequence[PolicySpec]) -> tuple[Sharing, ...]:
    """Each `full` policy by itself; `lora` policies of one model together, on one base."""
    return _sharing([one for one in policies if one.trained], {})


def served_together(policies: Sequence[PolicySpec]) -> tuple[Sharing, ...]:
    """Each `full` policy by itself; of one model all `lora` policies, and the `frozen` ones that are nothing else."""
    return _sharing(policies, {one.name: one.start for one in policies if one.kind == "frozen"})


def _sharing(policies: Sequence[PolicySpec], starts: dict[str, Path | None]) -> tuple[Sharing, ...]:
    members: dict[tuple[str, ...], list[PolicySpec]] = {}
    for one in policies:
        own = ("full", one.name) if one.kind == "full" else ("base", one.model, str(starts.get(one.name) or ""))
        members.setdefault(own, []).append(one)
    return tuple(
        Sharing(
            name=together[0].name if len(together) == 1 else f"{together[0].name}+{len(together) - 1}",
            model=together[0].model,
            policies=tuple(one.name for one in together),
        )
        for together in members.values()
    )


def layouts(
    slots: Sequence[Slot], units: Sequence[Sharing], pools: Sequence[Sharing], options: ClusterOptions
) -> Iterator[Layout]:
    """All ways worth trying, the best first. None of them where there are too few slots.

    Learners are one group, so that no GPU waits for the policy with the most to learn from; only where that does not
    fit into memory does each get GPUs of its own.
    """
    device = slots[0].device
    if not units:
        blocks = _blocks(range(len(slots)), slots, options)
        yield from [Layout(groups=(), pools=_served(pools, blocks, options))] if blocks else ()
    elif options.placement == "colocated" or device == "cpu":
        yield from _colocated(slots, units, pools, options)
    else:
        yield from _separate(slots, units, pools, options)


def _colocated(
    slots: Sequence[Slot], units: Sequence[Sharing], pools: Sequence[Sharing], options: ClusterOptions
) -> Iterator[Layout]:
    """Learners on as many slots as they may have, samplers on all; on CPUs samplers may be asked to keep off."""
    device = slots[0].device
    ranks = options.learner_ranks or (len(slots) if device == "gpu" else 1)
    if ranks > len(slots):
        return
    apart = options.placement == "separate" and ranks < len(slots)
    blocks = _blocks(range(ranks if apart else 0, len(slots)), slots, options)
    if blocks:
        yield Layout(groups=(_joint(units, range(ranks)),), pools=_served(pools, blocks, options))


def _separate(
    slots: Sequence[Slot], units: Sequence[Sharing], pools: Sequence[Sharing], options: ClusterOptions
) -> Iterator[Layout]:
    """Samplers on the last slots, learners on the first: those ways first that leave no GPU idle, and of them those
    where the fewest engines share one."""
    # A node is cut into engines from its end, so that what is left over lies beside the learners.
    blocks = _blocks(range(len(slots)), slots, options, from_end=True)
    ways: list[Layout] = []
    for count in range(1, min(options.samplers * len(pools), len(blocks)) + 1):
        chosen = blocks[-count:]
        taken = {slot for block in chosen for slot in block}
        free = [slot for slot in range(len(slots)) if slot not in taken]
        served = _served(pools, chosen, options)
        ways += [Layout(groups=groups, pools=served) for groups in _groups(free, units, options.learner_ranks)]
    yield from sorted(ways, key=lambda way: (-len(way.slots), way.crowd, len(way.groups)))


def _groups(free: Sequence[int], units: Sequence[Sharing], ranks: int | None) -> Iterator[tuple[LearnerGroup, ...]]:
    """All policies in one group, and each unit in a group of its own, as far as there are slots for it."""
    together, each = ranks or len(free), ranks or len(free) // len(units)
    if 0 < together <= len(free):
        yield (_joint(units, free[:together]),)
    if len(units) > 1 and 0 < each * len(units) <= len(free):
        starts = range(0, each * len(units), each)
        yield tuple(
            _group(unit.name, (unit,), free[start : start + each]) for unit, start in zip(units, starts, strict=True)
        )


def _joint(units: Sequence[Sharing], slots: Sequence[int]) -> LearnerGroup:
    return _group("learners", units, slots)


def _group(name: str, units: Sequence[Sharing], slots: Sequence[int]) -> LearnerGroup:
    return LearnerGroup(
        name=name, policies=tuple(policy for unit in units for policy in unit.policies), slots=tuple(slots)
    )


def _blocks(
    numbers: range, slots: Sequence[Slot], options: ClusterOptions, *, from_end: bool = False
) -> list[tuple[int, ...]]:
    """Slots of one node each, as many as an engine has pieces."""
    size, blocks = options.tensor_parallel, []
    for _, members in groupby(numbers, key=lambda number: slots[number].host):
        own = list(members)
        rest = len(own) % size if from_end else 0
        blocks += [tuple(own[start : start + size]) for start in range(rest, len(own) - size + 1, size)]
    return blocks


def _served(
    pools: Sequence[Sharing], blocks: Sequence[tuple[int, ...]], options: ClusterOptions
) -> tuple[SamplerPool, ...]:
    """Engines dealt out over the blocks, those of one pool to different ones as long as there are any."""
    numbers = iter(range(len(pools) * options.samplers))
    return tuple(
        SamplerPool(
            name=one.name,
            model=one.model,
            policies=one.policies,
            engines=tuple(blocks[next(numbers) % len(blocks)] for _ in range(options.samplers)),
        )
        for one in pools
    )
