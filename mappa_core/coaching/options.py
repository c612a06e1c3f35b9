"""Options of the coaches of core."""

from __future__ import annotations

from dataclasses import dataclass, field

from mappa_core.calls.options import CallLimits, Price
from mappa_core.config.schema import Use


@dataclass
class LLMCoachOptions:
    """Options that core adds to those of a transport that is used as a coach."""

    rubrics: str | None = None
    """Folder with a Markdown template per agent (AGENT.md); missing ones come from the workflow, else from core."""
    batch: str = "step"
    """step: one call per action, as soon as it is done | trajectory: one call for all actions, after the last"""
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


@dataclass
class EnsembleOptions:
    members: list[Use] = field(default_factory=list)
    """Coaches that judge every action; at least two."""
    combine: str = "median"
    """mean | median | trimmed_mean (without the highest and the lowest fifth, at least one each) | min | weighted"""
    weights: list[float] = field(default_factory=list)
    """One per member, for `weighted`."""
    at_least: int = 1
    """Minimum number of members with a score; with fewer the verdict has no score."""
    max_spread: float | None = None
    """Points between the highest and the lowest score above which the members disagree; None: never."""
    escalate_to: Use | None = None
    """Coach that decides if the members disagree; None: the verdict abstains."""
