"""Finds the placement of a run, or refuses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mappa_core import ConfigError
from mappa_core.engine import PolicySpec, TrainSection
from mappa_engine.cluster.placement.checks import check_options, check_transport, window_cache_mb
from mappa_engine.cluster.placement.first_fit import Workload, first_placement
from mappa_engine.cluster.placement.placement import Placement
from mappa_engine.cluster.placement.refusal import explain_refusal
from mappa_engine.cluster.placement.resources import Resources
from mappa_engine.memory_estimate import format_bytes
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import AUTO, ClusterOptions


def find_placement(
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    resources: Resources,
    options: ClusterOptions,
    *,
    train: TrainSection | None,
) -> Placement:
    """Map policies to the slots of a cluster, and decide the options that are `auto`.

    Args:
        shapes: model shapes by model name, for every policy.
        train: None without training, and so without learners.

    Raises:
        ConfigError: for invalid options, too few slots, or too little memory, with the arithmetic, remedies, and the
            machines that would do.
    """
    check_options(options)
    work = Workload(policies=tuple(policies), shapes=shapes, resources=resources, train=train)
    check_transport(policies, options, gpu=work.gpu, learning=train is not None)
    placement = first_placement(work, options)
    if not placement.fits:
        raise ConfigError(explain_refusal(placement, work, options))
    return replace(
        placement,
        reasons=tuple(_decisions(placement, work, options)),
        notes=tuple(_notes(placement, len(resources.slots), options)),
    )


def _decisions(placement: Placement, work: Workload, options: ClusterOptions) -> Iterator[str]:
    """Describe what was decided of the options that are `auto`; nothing is to be said of CPUs."""
    if not work.gpu:
        return
    chosen, decided = placement.options, []
    if work.learning and options.zero == AUTO:
        decided.append(f"zero {chosen.zero}")
    if work.learning and options.gradient_checkpointing == AUTO:
        decided.append(f"gradient_checkpointing {str(chosen.gradient_checkpointing).lower()}")
    if options.samplers == AUTO:
        decided.append(f"at most {placement.max_engines_per_slot} of {len(placement.pools)} samplers on a GPU")
    if options.kv_cache_mb == AUTO:
        inputs = work.inputs(chosen)
        window = max(inputs.window(shape) for shape in work.shapes.values())
        requests = chosen.kv_cache_mb / window_cache_mb(inputs, work.served)
        decided.append(f"kv_cache_mb {chosen.kv_cache_mb:,}, {requests:.1f} requests of {window:,} tokens")
    if decided:
        yield f"decided: {'; '.join(decided)}"


def _notes(placement: Placement, count: int, options: ClusterOptions) -> Iterator[str]:
    """Describe idle GPUs among `count`, and CPUs that share too small a memory; idle CPUs are not worth a note."""
    if placement.device == "cpu":
        for host, taken in placement.host_bytes.items():
            if host in placement.memory and taken > placement.memory[host]:
                yield (
                    f"{host} has {format_bytes(placement.memory[host])} of memory, and up to {format_bytes(taken)} are "
                    "taken; a shorter engine.options.max_model_len or a smaller train.micro_tokens takes less"
                )
        return
    if idle := count - len(placement.slots):
        yield f"{idle} of {count} GPUs do nothing: engine.options.learner_ranks or samplers can use them"
    sampling = {slot for pool in placement.pools for engine in pool.engines for slot in engine}
    if options.placement == "colocated" and (quiet := len(placement.slots) - len(sampling)):
        yield f"{quiet} of {count} GPUs learn and do not sample: more engine.options.samplers would use them"
