"""Explains a placement with its arithmetic: why options that were `auto` were decided so, and why it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mappa_engine.cluster.placement.format import sum_parts
from mappa_engine.cluster.placement.placement import Placement
from mappa_engine.cluster.placement.resources import KEPT_FREE, usable_bytes
from mappa_engine.memory_estimate import format_bytes
from mappa_engine.options import AUTO, ClusterOptions


def explain_decisions(
    placement: Placement,
    options: ClusterOptions,
    *,
    rejected: Sequence[Placement],
    denser: Placement | None,
    window: int,
    window_mb: int,
) -> tuple[str, ...]:
    """Explain what was decided of the options that are `auto`, one line each; nothing is to be said of CPUs.

    Args:
        rejected: placements of the same layout with settings that cost less time.
        denser: the nearest placement with more engines on a GPU.
        window: tokens of the longest request; its keys and values take `window_mb`.
    """
    if placement.device == "cpu":
        return ()
    lines = [f"{KEPT_FREE:.0%} of every GPU are left free: activations, and what CUDA takes by itself, are estimates"]
    if placement.groups:
        lines += _explain_learning(placement, options, rejected)
    if options.samplers == AUTO:
        lines.append(f"samplers: {_engines(placement)}{_against(denser, 'more')}")
    if options.kv_cache_mb == AUTO:
        held = placement.options.kv_cache_mb
        lines.append(
            f"kv_cache_mb: {held:,} = {held / window_mb:.1f} requests of {window:,} tokens, {window_mb:,} MB each"
        )
    return tuple(lines)


def _explain_learning(placement: Placement, options: ClusterOptions, rejected: Sequence[Placement]) -> Iterator[str]:
    chosen = placement.options
    cheaper = {(one.options.zero, one.options.gradient_checkpointing): one for one in rejected}
    if options.zero == AUTO:
        why = _against(cheaper.get((2, chosen.gradient_checkpointing)), "2") if chosen.zero == 3 else ""
        yield f"zero: {chosen.zero}{why}"
    if options.gradient_checkpointing == AUTO:
        why = _against(cheaper.get((chosen.zero, False)), "without it") if chosen.gradient_checkpointing else ""
        yield f"gradient_checkpointing: {str(chosen.gradient_checkpointing).lower()}{why}"


def _against(other: Placement | None, what: str) -> str:
    """Say what another choice would have taken; nothing where there was none."""
    if other is None:
        return ""
    if other.crowded_hosts:
        host = other.crowded_hosts[0]
        return f"; {what} takes {format_bytes(other.host_bytes[host])} of {host}'s {format_bytes(other.memory[host])}"
    number = fullest_slot(other)
    taken, phase = other.peak(number)
    usable = other.slots[number].usable or 0
    return f"; {what} takes {format_bytes(taken)} while {phase}, of the {format_bytes(usable)} to be used"


def _engines(placement: Placement) -> str:
    """Describe how many engines a GPU has, and of how many pools."""
    pools, most = len(placement.pools), placement.max_engines_per_slot
    if most == pools:
        return "an engine of every policy on every GPU that samples"
    return f"{most} on a GPU, of {pools} that there are" if most > 1 else f"one on a GPU, {pools} take turns"


def explain_misfit(nearest: Placement, remedies: Mapping[str, Placement], machines: Sequence[str]) -> str:
    """Explain why the nearest placement does not fit, what each remedy would need, and which machines would do."""
    lines = [*(_host_misfit(nearest) if nearest.crowded_hosts else _slot_misfit(nearest)), "What would help:"]
    for what, other in remedies.items():
        fits = "which fits" if other.fits else "which is still too much"
        lines.append(f"  {what}: {format_bytes(other.peak(fullest_slot(other))[0])}, {fits}")
    if machines:
        lines.append(f"  other machines: {', '.join(machines)}")
    lines.append("  also a smaller engine.options.packed_tokens or fewer policies with weights of their own")
    return "\n".join(lines)


def fullest_slot(placement: Placement) -> int:
    """Return the number of the slot that has least left."""
    return max(range(len(placement.slots)), key=placement.excess)


def _slot_misfit(nearest: Placement) -> Iterator[str]:
    number = fullest_slot(nearest)
    needed, phase = nearest.peak(number)
    slot = nearest.slots[number]
    yield (
        f"the policies do not fit: {slot} has {format_bytes(slot.size or 0)}, of which "
        f"{format_bytes(slot.usable or 0)} can be used, and while {phase} it would hold {format_bytes(needed)}:"
    )
    for load in nearest.loads_on(number):
        yield f"  {load.actor}: {format_bytes(load.bytes_at(phase))} = {sum_parts(load.by_phase[phase], ' + ')}"


def _host_misfit(nearest: Placement) -> Iterator[str]:
    host = nearest.crowded_hosts[0]
    size, parts = nearest.memory[host], nearest.host_parts[host]
    yield (
        f"the policies do not fit: {host} itself has {format_bytes(size)} of memory, of which "
        f"{format_bytes(usable_bytes(size))} can be used, and it would hold {format_bytes(sum(parts.values()))} = "
        f"{sum_parts(parts, ' + ')}"
    )
