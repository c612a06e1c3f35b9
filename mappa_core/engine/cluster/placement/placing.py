"""Policies and resources to a placement: the first layout that fits, or an error that shows the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mappa_core.engine.cluster.placement.checks import check_options, check_windows
from mappa_core.engine.cluster.placement.layout import (
    Layout,
    layouts,
    learning_together,
    served_together,
)
from mappa_core.engine.cluster.placement.loads import Sizes, loads_of
from mappa_core.engine.cluster.placement.placed import Placement
from mappa_core.engine.cluster.placement.resources import Resources, Slot
from mappa_core.engine.cluster.placement.showing import refusal
from mappa_core.engine.options import ClusterOptions
from mappa_core.engine.shapes import ModelShape
from mappa_core.errors import ConfigError
from mappa_core.protocols import PolicySpec


def place(
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    resources: Resources,
    options: ClusterOptions,
    *,
    micro_tokens: int | None,
) -> Placement:
    """Map policies to the slots of a cluster.

    Args:
        shapes: of every model that a policy names.
        micro_tokens: `train.micro_tokens`; None: nothing is trained, and there are no learners.

    Raises:
        ConfigError: options that make no sense; too few slots; memory that does not suffice, with the arithmetic and
            what would help.
    """
    check_options(options)

    def tried(options: ClusterOptions) -> list[Placement]:
        return _candidates(policies, shapes, resources, options, micro_tokens)

    found = tried(options)
    fitting = next((one for one in found if one.fits), None)
    if fitting is not None:
        return replace(fitting, notes=_notes(fitting, len(resources.slots), options))
    nearest = min(found, key=_excess)
    helping = {what: min(tried(other), key=_excess) for what, other in _remedies(options)}
    raise ConfigError(refusal(nearest, helping))


def _candidates(
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    resources: Resources,
    options: ClusterOptions,
    micro_tokens: int | None,
) -> list[Placement]:
    """All ways worth trying, whether they fit or not."""
    slots = resources.slots
    sizes = Sizes(
        policies={one.name: one for one in policies},
        shapes=shapes,
        options=options,
        device=resources.device,
        tokens=micro_tokens,
    )
    units, pools = () if micro_tokens is None else learning_together(policies), served_together(policies)
    check_windows(sizes, pools)
    found = [_placement(layout, slots, sizes) for layout in layouts(slots, units, pools, options)]
    if not found:
        raise ConfigError(_too_few(slots, options))
    return found


def _placement(layout: Layout, slots: Sequence[Slot], sizes: Sizes) -> Placement:
    used = layout.renumbered()
    return Placement(
        device=sizes.device,
        dtype=sizes.dtype,
        slots=tuple(slots[number] for number in sorted(layout.slots)),
        groups=used.groups,
        pools=used.pools,
        loads=tuple(loads_of(used.groups, used.pools, sizes)),
    )


def _excess(placement: Placement) -> int:
    """Bytes by which the fullest slot is overdrawn."""
    return max(placement.peak(number)[0] - (slot.size or 0) for number, slot in enumerate(placement.slots))


def _remedies(options: ClusterOptions) -> Iterator[tuple[str, ClusterOptions]]:
    """Settings that take less memory, each by itself, and all together."""
    changes: dict[str, Any] = {"zero": 3, "gradient_checkpointing": True, "offload_optimizer": True}
    new = {name: value for name, value in changes.items() if getattr(options, name) != value}
    for name, value in new.items():
        yield f"engine.options.{name}={str(value).lower()}", replace(options, **{name: value})
    if len(new) > 1:
        yield "all of these together", replace(options, **new)


def _too_few(slots: Sequence[Slot], options: ClusterOptions) -> str:
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
    """Which of `count` GPUs are idle; that CPUs have something else to do is nothing to speak of."""
    if placement.device == "cpu":
        return ()
    notes = []
    if idle := count - len(placement.slots):
        notes.append(f"{idle} of {count} GPUs do nothing: engine.options.learner_ranks or samplers can use them")
    sampling = {slot for pool in placement.pools for engine in pool.engines for slot in engine}
    if options.placement == "colocated" and (quiet := len(placement.slots) - len(sampling)):
        notes.append(f"{quiet} of {count} GPUs learn and do not sample: more engine.options.samplers would use them")
    return tuple(notes)
