"""Options of `mappa improve`, and of the optimiser `reflection`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mappa_core import ConfigError

DEFAULT_ROLLOUTS = 400
PERFECT = 1.0
"""Score of a task that is solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImproveOptions:
    """How prompts are searched for. Numbers of tasks and rollouts are maxima."""

    proposer: str
    """Offer of a provider whose model writes the prompts."""
    proposer_settings: tuple[str, ...] = ()
    """Its options as `key=value`."""
    rollouts: int = DEFAULT_ROLLOUTS
    """Rollouts of the whole run, the report's included."""
    propose: int = 64
    """Tasks that proposals learn from."""
    choose: int = 24
    """Tasks that choose among candidates."""
    report: int = 48
    """Tasks that choose nothing and are reported."""
    minibatch: int = 4
    """Tasks that one proposal is shown and first tried on."""
    samples: int = 1
    """Rollouts per task and candidate."""
    feedback: Literal["verdicts", "outcome"] = "verdicts"
    """What a proposal is shown: the verdicts on the agent's own actions, or the team's result alone."""
    choice: Literal["blame", "round_robin"] = "blame"
    """Whose prompt is changed next: the agent with most blame, or each in turn."""
    agents: tuple[str, ...] = ()
    """Agents whose prompts may change; none: all whose prompt the workflow names."""
    patience: int = 16
    """Proposals in a row without a candidate that is kept, after which the search ends."""
    max_growth: float = 4.0
    """Length of a prompt at which it is refused, in multiples of the original's, which counts as 500 characters at
    least."""
    max_tokens: int = 4096
    """Tokens of a proposal, thinking included."""

    def check(self) -> None:
        """Raise ConfigError if a value is invalid."""
        for name in ("rollouts", "propose", "choose", "minibatch", "samples", "patience", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')}: must be at least 1, not {getattr(self, name)}")
        if self.report < 2:
            raise ConfigError(f"--report: must be at least 2, not {self.report}")
        if not 1 <= self.max_growth < math.inf:
            raise ConfigError(f"--max-growth: must be at least 1 and finite, not {self.max_growth:g}")


@dataclass
class ReflectionOptions:
    proposals: int = 2
    """Proposals of a round."""
    tasks: int = 24
    """Training tasks, by hash, that choose among prompts; they, and others of their clusters, are not trained on."""
    examples: int = 8
    """Actions that a proposal is shown, those with the lowest scores."""
    max_growth: float = 4.0
    """Length of a prompt at which it is refused, in multiples of the first one's, which counts as 500 characters at
    least."""
    max_tokens: int = 4096
    """Tokens of a proposal, thinking included."""

    def check(self) -> None:
        """Raise ConfigError if a value is invalid."""
        for name, low in (("proposals", 1), ("tasks", 2), ("examples", 1), ("max_tokens", 1), ("max_growth", 1)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name}: must be at least {low}, not {getattr(self, name):g}")
