"""Placement search: the first layout that fits into memory, or an error that shows the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mappa_core import ConfigError
from mappa_core.engine import PolicySpec
from mappa_engine.cluster.placement.candidates import CandidateLayout, candidate_layouts, learner_units, sampler_units
from mappa_engine.cluster.placement.checks import check_options, check_windows
from mappa_engine.cluster.placement.format import explain_misfit
from mappa_engine.cluster.placement.memory import MemoryInputs, compute_loads
from mappa_engine.cluster.placement.placement import Placement
from mappa_engine.cluster.placement.resources import DeviceSlot, Resources
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import ClusterOptions


def find_placement(
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    resources: Resources,
    options: ClusterOptions,
    *,
    micro_tokens: int | None,
) -> Placement:
    """Map policies to the slots of a cluster.

    Args:
        shapes: model shapes by model name, for every policy.
        micro_tokens: `train.micro_tokens`; None without training, and so without learners.

    Raises:
        ConfigError: for invalid options, too few slots, or too little memory, with the arithmetic and remedies.
    """
    check_options(options)

    def candidates(options: ClusterOptions) -> list[Placement]:
        return _candidates(policies, shapes, resources, options, micro_tokens)

    placements = candidates(options)
    fitting = next((one for one in placements if one.fits), None)
    if fitting is not None:
        return replace(fitting, notes=_notes(fitting, len(resources.slots), options))
    nearest = min(placements, key=_excess)
    helping = {what: min(candidates(other), key=_excess) for what, other in _remedies(options)}
    raise ConfigError(explain_misfit(nearest, helping))


def _candidates(
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    resources: Resources,
    options: ClusterOptions,
    micro_tokens: int | None,
) -> list[Placement]:
    """List all candidate placements, whether they fit or not."""
    slots = resources.slots
    inputs = MemoryInputs(
        policies={one.name: one for one in policies},
        shapes=shapes,
        options=options,
        device=resources.device,
        tokens=micro_tokens,
    )
    units, pools = () if micro_tokens is None else learner_units(policies), sampler_units(policies)
    check_windows(inputs, pools)
    placements = [_placement(layout, slots, inputs) for layout in candidate_layouts(slots, units, pools, options)]
    if not placements:
        raise ConfigError(_too_few_slots(slots, options))
    return placements


def _placement(layout: CandidateLayout, slots: Sequence[DeviceSlot], inputs: MemoryInputs) -> Placement:
    used = layout.with_compact_slots()
    return Placement(
        device=inputs.device,
        dtype=inputs.dtype,
        slots=tuple(slots[number] for number in sorted(layout.slots)),
        groups=used.groups,
        pools=used.pools,
        loads=tuple(compute_loads(used.groups, used.pools, inputs)),
    )


def _excess(placement: Placement) -> int:
    """Return the bytes by which the fullest slot exceeds its memory."""
    return max(placement.peak(number)[0] - (slot.size or 0) for number, slot in enumerate(placement.slots))


def _remedies(options: ClusterOptions) -> Iterator[tuple[str, ClusterOptions]]:
    """Yield options that take less memory, each alone, then all together."""
    changes: dict[str, Any] = {"zero": 3, "gradient_checkpointing": True, "offload_optimizer": True}
    new = {name: value for name, value in changes.items() if getattr(options, name) != value}
    for name, value in new.items():
        yield f"engine.options.{name}={str(value).lower()}", replace(options, **{name: value})
    if len(new) > 1:
        yield "all of these together", replace(options, **new)


def _too_few_slots(slots: Sequence[DeviceSlot], options: ClusterOptions) -> str:
    asked = ["placement", "tensor_parallel", *(["learner_ranks"] if options.learner_ranks is not None else [])]
    wanted = ", ".join(f"engine.options.{name}={getattr(options, name)}" for name in asked)
    instead = (
        ", or let them take turns by engine.options.placement=colocated" if options.placement == "separate" else ""
    )
    return (
        f"the {len(slots)} {slots[0].device.upper()}s that there are do not suffice for {wanted}, where an engine is "
        f"on one machine. Ask for less{instead}."
    )


def _notes(placement: Placement, count: int, options: ClusterOptions) -> tuple[str, ...]:
    """Describe idle GPUs among `count`; idle CPUs are not worth a note."""
    if placement.device == "cpu":
        return ()
    notes = []
    if idle := count - len(placement.slots):
        notes.append(f"{idle} of {count} GPUs do nothing: engine.options.learner_ranks or samplers can use them")
    sampling = {slot for pool in placement.pools for engine in pool.engines for slot in engine}
    if options.placement == "colocated" and (quiet := len(placement.slots) - len(sampling)):
        notes.append(f"{quiet} of {count} GPUs learn and do not sample: more engine.options.samplers would use them")
    return tuple(notes)
