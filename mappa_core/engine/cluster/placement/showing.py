"""A placement as text: the map that is printed before anything starts, and the arithmetic of one that does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mappa_core.engine.cluster.placement.loads import MOMENTS, Load, Moment, Role
from mappa_core.engine.cluster.placement.placed import Placement
from mappa_core.engine.footprint import Parts, gigabytes

Row = tuple[str, ...]

AT_WORK: Mapping[Role, Moment] = {"learner": "learning", "sampler": "sampling"}


def table(placement: Placement) -> tuple[str, ...]:
    """The map as lines of text: who runs where, and what it takes."""
    return (
        *_aligned(rows(placement)),
        "",
        *_aligned(memory(placement)),
        *parts(placement),
        *placement.notes,
    )


def rows(placement: Placement) -> list[Row]:
    """A heading, then a row for everyone who runs somewhere: what, for which policies, and where."""
    heading = ("", "policies", "on")
    learning = [
        (
            f"{group.name}, {_count(len(group.slots), 'rank')}",
            ", ".join(group.policies),
            _places(placement, group.slots),
        )
        for group in placement.groups
    ]
    sampling = [
        (
            f"sampler {pool.name}, {_count(len(pool.engines), 'engine')}",
            ", ".join(pool.policies),
            _engines(placement, pool.engines),
        )
        for pool in placement.pools
    ]
    return [heading, *learning, *sampling]


def memory(placement: Placement) -> list[Row]:
    """A heading, then for slots that hold the same who takes how much of each at every moment."""
    found: list[Row] = [("", "", *MOMENTS)]
    for slots in _alike(placement):
        size = placement.slots[slots[0]].size
        has = "" if size is None else f" of {gigabytes(size)}"
        in_all = (gigabytes(placement.bytes_at(slots[0], moment)) for moment in MOMENTS)
        found.append((f"{_places(placement, slots)}{has}", "all", *in_all))
        for same in _pairs(placement, slots):
            taken = (gigabytes(same[0].bytes_at(moment)) for moment in MOMENTS)
            found.append(("", _together(same), *taken))
    return found


def parts(placement: Placement) -> list[str]:
    """What everyone's memory is for while they are at work, a line for all that take the same."""
    lines = []
    for slots in _alike(placement):
        for same in _pairs(placement, slots):
            moment = AT_WORK[same[0].role]
            lines.append(f"{_together(same)} {moment}: {_sum(same[0].at[moment], ', ')}")
    return list(dict.fromkeys(lines))


def document(placement: Placement) -> dict[str, Any]:
    """A placement as JSON values; memory is in bytes."""
    return {
        "device": placement.device,
        "dtype": placement.dtype,
        "learners": [
            {"name": one.name, "policies": one.policies, "slots": _names(placement, one.slots)}
            for one in placement.groups
        ],
        "samplers": [
            {
                "name": one.name,
                "model": one.model,
                "policies": one.policies,
                "engines": [_names(placement, engine) for engine in one.engines],
            }
            for one in placement.pools
        ],
        "slots": {
            str(slot): {
                "bytes": slot.size,
                "actors": {load.actor: load.at for load in placement.on(number)},
            }
            for number, slot in enumerate(placement.slots)
        },
        "host_bytes": dict(placement.host_bytes),
        "notes": placement.notes,
    }


def _aligned(table: Sequence[Row]) -> list[str]:
    """Rows as lines, their cells below each other."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def refusal(nearest: Placement, helping: Mapping[str, Placement]) -> str:
    """Why the placement that comes nearest does not fit, and what each remedy would come to."""
    number = max(range(len(nearest.slots)), key=lambda one: nearest.peak(one)[0] - (nearest.slots[one].size or 0))
    needed, moment = nearest.peak(number)
    size = nearest.slots[number].size or 0
    lines = [
        f"the policies do not fit: {nearest.slots[number]} has {gigabytes(size)}, and while {moment} it would hold "
        f"{gigabytes(needed)}:"
    ]
    for load in nearest.on(number):
        lines.append(f"  {load.actor}: {gigabytes(load.bytes_at(moment))} = {_sum(load.at[moment], ' + ')}")
    lines.append("What would help:")
    for what, other in helping.items():
        peak = max(other.peak(one)[0] for one in range(len(other.slots)))
        lines.append(f"  {what}: {gigabytes(peak)}, which {'fits' if other.fits else 'is still too much'}")
    lines.append(
        "  also a smaller engine.options.window, packed_tokens or kv_cache_mb, fewer samplers, more GPUs, or policies "
        "of kind lora, which share a model"
    )
    return "\n".join(lines)


def _sum(parts: Parts, between: str) -> str:
    return between.join(f"{name} {gigabytes(size)}" for name, size in parts.items() if size)


def _pairs(placement: Placement, slots: Sequence[int]) -> Iterable[tuple[Load, ...]]:
    """The first loads of slots that are alike, then the second ones."""
    return zip(*(placement.on(slot) for slot in slots), strict=True)


def _together(loads: Sequence[Load]) -> str:
    names = list(dict.fromkeys(load.actor for load in loads))
    return names[0] if len(names) == 1 else f"{loads[0].role}s"


def _alike(placement: Placement) -> list[list[int]]:
    """Slots of one size with loads of the same size on them, together."""
    kinds: dict[object, list[int]] = {}
    for number, slot in enumerate(placement.slots):
        on = tuple((load.role, tuple(load.bytes_at(moment) for moment in MOMENTS)) for load in placement.on(number))
        kinds.setdefault((slot.size, on), []).append(number)
    return list(kinds.values())


def _names(placement: Placement, slots: Iterable[int]) -> list[str]:
    return [str(placement.slots[number]) for number in slots]


def _places(placement: Placement, slots: Sequence[int]) -> str:
    """`gpu0-3` of one machine, with its name where there are several."""
    several = len({slot.host for slot in placement.slots}) > 1
    found: dict[str, list[int]] = {}
    for number in slots:
        slot = placement.slots[number]
        found.setdefault(f"{slot.host} {slot.device}" if several else slot.device, []).append(slot.number)
    return ", ".join(f"{where}{_ranges(numbers)}" for where, numbers in found.items())


def _engines(placement: Placement, engines: Sequence[Sequence[int]]) -> str:
    """Those of one piece together, the others each by itself."""
    if all(len(engine) == 1 for engine in engines):
        return _places(placement, sorted({engine[0] for engine in engines}))
    return "; ".join(_places(placement, engine) for engine in engines)


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,5` of 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
