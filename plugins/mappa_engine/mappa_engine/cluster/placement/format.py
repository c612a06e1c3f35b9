"""Formats a placement as text and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mappa_core.engine import EnginePlan
from mappa_engine.cluster.placement.memory import PHASES, ActorRole, MemoryLoad, Phase
from mappa_engine.cluster.placement.placement import Placement
from mappa_engine.memory_estimate import format_bytes

TableRow = tuple[str, ...]

DECIDED = ("zero", "gradient_checkpointing", "kv_cache_mb")
"""Options that placement decides where they are `auto`, beside the engines that its pools list."""
WORK_PHASE: Mapping[ActorRole, Phase] = {"learner": "learning", "sampler": "sampling"}


def format_placement(placement: Placement) -> tuple[str, ...]:
    """Format a placement as lines of text: what runs where, and its memory."""
    return (
        *_aligned(placement_rows(placement)),
        "",
        *_aligned(memory_rows(placement)),
        *memory_lines(placement),
        *host_lines(placement),
        *placement.reasons,
        *placement.notes,
    )


def placement_rows(placement: Placement) -> list[TableRow]:
    """Build a header and a row per learner group and sampler pool: name, policies and slots."""
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


def memory_rows(placement: Placement) -> list[TableRow]:
    """Build a header and rows of memory per phase, for each set of slots with equal loads."""
    rows: list[TableRow] = [("", "", *PHASES)]
    for slots in _equal_slots(placement):
        size = placement.slots[slots[0]].size
        has = "" if size is None else f" of {format_bytes(size)}"
        in_all = (format_bytes(placement.bytes_at(slots[0], phase)) for phase in PHASES)
        rows.append((f"{_places(placement, slots)}{has}", "all", *in_all))
        for same in _corresponding_loads(placement, slots):
            taken = (format_bytes(same[0].bytes_at(phase)) for phase in PHASES)
            rows.append(("", _common_name(same), *taken))
    return rows


def memory_lines(placement: Placement) -> list[str]:
    """Describe the memory by part of every actor in its working phase, one line for equal ones."""
    lines = []
    for slots in _equal_slots(placement):
        for same in _corresponding_loads(placement, slots):
            phase = WORK_PHASE[same[0].role]
            lines.append(f"{_common_name(same)} {phase}: {sum_parts(same[0].by_phase[phase], ', ')}")
    return list(dict.fromkeys(lines))


def host_lines(placement: Placement) -> list[str]:
    """Describe the memory of every node itself, by purpose, and how much it has where that is known."""
    lines = []
    for host, parts in placement.host_parts.items():
        has = f", of {format_bytes(placement.memory[host])}" if host in placement.memory else ""
        lines.append(f"memory of {host} itself: {format_bytes(sum(parts.values()))} = {sum_parts(parts, ' + ')}{has}")
    return lines


def placement_plan(placement: Placement) -> EnginePlan:
    """Build the plan: what runs where, its memory by phase and part, and the memory of the machines themselves."""
    return EnginePlan(
        tables=(tuple(placement_rows(placement)), tuple(memory_rows(placement))),
        lines=(*memory_lines(placement), *host_lines(placement), *placement.reasons),
        notes=placement.notes,
        details={"placement": placement_json(placement)},
    )


def placement_json(placement: Placement) -> dict[str, Any]:
    """Convert a placement to JSON values; memory is in bytes."""
    return {
        "device": placement.device,
        "dtype": placement.dtype,
        "learners": [
            {"name": group.name, "policies": group.policies, "slots": _names(placement, group.slots)}
            for group in placement.groups
        ],
        "samplers": [
            {
                "name": pool.name,
                "model": pool.model,
                "policies": pool.policies,
                "engines": [_names(placement, engine) for engine in pool.engines],
            }
            for pool in placement.pools
        ],
        "slots": {
            str(slot): {
                "bytes": slot.size,
                "actors": {load.actor: load.by_phase for load in placement.loads_on(number)},
            }
            for number, slot in enumerate(placement.slots)
        },
        "host_bytes": dict(placement.host_bytes),
        "options": {name: getattr(placement.options, name) for name in DECIDED},
        "reasons": placement.reasons,
        "notes": placement.notes,
    }


def _aligned(cells: Sequence[TableRow]) -> list[str]:
    """Join rows to lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def sum_parts(parts: Mapping[Any, int], between: str) -> str:
    """Format memory by part, without empty ones."""
    return between.join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)


def _corresponding_loads(placement: Placement, slots: Sequence[int]) -> Iterable[tuple[MemoryLoad, ...]]:
    """Yield the first loads of slots with equal loads, then the second ones, and so on."""
    return zip(*(placement.loads_on(slot) for slot in slots), strict=True)


def _common_name(loads: Sequence[MemoryLoad]) -> str:
    names = list(dict.fromkeys(load.actor for load in loads))
    return names[0] if len(names) == 1 else f"{loads[0].role}s"


def _equal_slots(placement: Placement) -> list[list[int]]:
    """Group slots of equal size with equal loads."""
    kinds: dict[object, list[int]] = {}
    for number, slot in enumerate(placement.slots):
        on = tuple((load.role, tuple(load.bytes_at(phase) for phase in PHASES)) for load in placement.loads_on(number))
        kinds.setdefault((slot.size, on), []).append(number)
    return list(kinds.values())


def _names(placement: Placement, slots: Iterable[int]) -> list[str]:
    return [str(placement.slots[number]) for number in slots]


def _places(placement: Placement, slots: Sequence[int]) -> str:
    """Format slots as `gpu0-3`, with the machine where there are several."""
    several = len({slot.host for slot in placement.slots}) > 1
    by_device: dict[str, list[int]] = {}
    for number in slots:
        slot = placement.slots[number]
        by_device.setdefault(f"{slot.host} {slot.device}" if several else slot.device, []).append(slot.number)
    return ", ".join(f"{where}{_ranges(numbers)}" for where, numbers in by_device.items())


def _engines(placement: Placement, engines: Sequence[Sequence[int]]) -> str:
    """Format the slots of engines: those of one slot together, others one by one."""
    if all(len(engine) == 1 for engine in engines):
        return _places(placement, sorted({engine[0] for engine in engines}))
    return "; ".join(_places(placement, engine) for engine in engines)


def _ranges(numbers: Sequence[int]) -> str:
    """Format 0, 1, 2, 3, 5 as `0-3,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
