"""What of a placement nobody has run on a GPU yet; the table on docs/engines.md says what of it ran on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from mappa_engine.cluster.placement import Placement


def experimental_parts(placement: Placement) -> Iterator[str]:
    """Yield the options of a placement on GPUs that are written from the sources of the libraries; none for CPUs."""
    if placement.device == "cpu":
        return
    options = placement.options
    if len({slot.host for slot in placement.slots}) > 1:
        yield "GPUs of several machines"
    elif len(placement.slots) > 1:
        yield "several GPUs"
    if options.tensor_parallel > 1:
        yield f"tensor_parallel={options.tensor_parallel}"
    if not placement.groups:
        return
    if options.placement == "separate":
        yield "placement=separate"
    if options.transport == "nccl":
        yield "transport=nccl"
    if options.zero != 2:
        yield f"zero={options.zero}"
    if options.offload_optimizer:
        yield "offload_optimizer=true"
    if placement.dtype == "float32":
        yield "dtype=float32"


def experimental_warning(placement: Placement) -> str | None:
    """Return one line that names the experimental parts of a placement; None without any."""
    parts = list(experimental_parts(placement))
    if not parts:
        return None
    return f"experimental: we have not run this on GPUs ({', '.join(parts)}). Compare a short run with one GPU first."
