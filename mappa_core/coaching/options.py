"""What a recipe may set about coaches of core."""

from __future__ import annotations

from dataclasses import dataclass, field

from mappa_core.calls.options import CallLimits, Price
from mappa_core.config.schema import Use


@dataclass
class LLMCoachOptions:
    """What core adds to the options of a transport where it is a coach."""

    rubrics: str | None = None
    """Folder with a Markdown template per agent (AGENT.md); what it lacks comes from the workflow, else from core."""
    batch: str = "step"
    """step: one call per action, as soon as it is done | trajectory: one call for all actions, when the last is done"""
    correction: bool = False
    """Also ask for a better action in full, where an action scores low."""
    budget: int = 24_000
    """Tokens of evidence at most; what is cut, and in which order, is said in the evidence."""
    max_tokens: int = 4096
    """Tokens of a reply at most, thinking included."""
    temperature: float | None = None
    """None: the provider's own; some models refuse any."""
    seed: int | None = None
    limits: CallLimits = field(default_factory=CallLimits)
    price: Price | None = None
    """None: unknown, and shown as unknown."""


@dataclass
class EnsembleOptions:
    members: list[Use] = field(default_factory=list)
    """Coaches that judge every action; at least two."""
    combine: str = "median"
    """mean | median | trimmed_mean (without the highest and the lowest fifth, at least one each) | min | weighted"""
    weights: list[float] = field(default_factory=list)
    """One per member, for `weighted`."""
    at_least: int = 1
    """Members that must have scored; below that the verdict has no score."""
    max_spread: float | None = None
    """Points between the highest and the lowest score above which the members disagree; None: never."""
    escalate_to: Use | None = None
    """Who is asked where they disagree; None: the verdict abstains."""
