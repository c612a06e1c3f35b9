"""Options of coaches that ask a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mappa_core.calls.options import CallLimits, Price
from mappa_core.config.rules import at_least, check_fields


@dataclass
class LLMCoachOptions:
    """Options that core adds to those of a transport that is used as a coach."""

    rubrics: str | None = None
    """Folder with a Markdown template per agent (AGENT.md); missing ones come from the workflow, else from core."""
    batch: Literal["step", "trajectory"] = "step"
    """One call per action, as soon as it is done, or one for all actions of a trajectory, after the last."""
    correction: bool = False
    """Also ask for a better action in full if an action scores low."""
    budget: int = 24_000
    """Maximum tokens of evidence; the prompt lists what was cut."""
    max_tokens: int = 4096
    """Maximum tokens of a reply, including reasoning."""
    temperature: float | None = None
    """None: the provider's default; some models refuse any."""
    seed: int | None = None
    limits: CallLimits = field(default_factory=CallLimits)
    price: Price | None = None
    """None: unknown, and reported as unknown."""

    def check(self) -> None:
        check_fields(self, at_least(1, "max_tokens"), at_least(0, "temperature"), at_least(1000, "budget"))
