"""Seeds of everything that is drawn while a team plays: functions of the run's seed and of names, so that a resume and
a replay draw the same."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: object) -> int:
    """A seed of 63 bits derived from `seed` and `names`, the same in every process and every replay."""
    text = "/".join(str(name) for name in (seed, *names))
    # Not `hash`, which differs from process to process. Shifted, as generators take signed numbers of 64 bits.
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
