"""Options of calls in batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mappa_core import ConfigError


@dataclass
class BatchOptions:
    quiet_s: float = 20.0
    """Seconds without a further call after which the calls gathered so far are submitted."""
    max_requests: int = 10_000
    """Calls in a batch at most; fewer where the provider allows fewer."""
    poll_s: float = 60.0
    """Seconds between two questions how far a batch is."""
    price_share: float = 0.5
    """What a token costs in a batch, as a share of `price`: look it up."""
    give_up_s: float = 3600.0
    """Seconds for which the provider may be out of reach before the calls of a batch fail; the batch stays recorded."""
    timeout_s: float = 600.0
    """Timeout of one upload, download or question in seconds."""

    def check(self) -> None:
        """Raise ConfigError where a value is not allowed."""
        for name in ("quiet_s", "poll_s", "give_up_s", "timeout_s"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{name}: must be above 0 and finite, not {value:g}")
        if not 0 < self.price_share <= 1:
            raise ConfigError(f"price_share: must lie above 0 and be at most 1, not {self.price_share:g}")
        if self.max_requests < 1:
            raise ConfigError(f"max_requests: must be at least 1, not {self.max_requests}")
