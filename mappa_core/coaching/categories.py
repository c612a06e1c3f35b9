"""Kinds of failure that a verdict may name, and what each is called in two published taxonomies: MAST (Cemri et al.
2025, arXiv 2503.13657; 14 modes, by their numbers) and AgentRx (Barke et al. 2026; ten categories)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """A kind of failure. `mast` and `agentrx` name the published modes that it covers; none: that taxonomy has no place
    for it."""

    name: str
    meaning: str
    mast: tuple[str, ...] = ()
    agentrx: tuple[str, ...] = ()


CATEGORIES: Mapping[str, Category] = {
    category.name: category
    for category in (
        Category(
            name="disobedience",
            meaning="an instruction, a policy or the own role was not kept",
            mast=("1.1", "1.2"),
            agentrx=("Instruction/Plan Adherence Failure", "Instruction Adherence Failure"),
        ),
        Category(
            name="misplanning",
            meaning="the plan or the work is not about what was asked",
            mast=("2.3",),
            agentrx=("Intent-Plan Misalignment",),
        ),
        Category(
            name="invention",
            meaning="something is stated that neither the task nor a tool said, and that does not follow",
            agentrx=("Invention of New Information",),
        ),
        Category(
            name="invalid call",
            meaning="a tool was called with arguments that are wrong, or a tool that does not exist",
            agentrx=("Invalid Invocation",),
        ),
        Category(
            name="misreading",
            meaning="what a tool or another agent said was read wrongly or ignored",
            mast=("2.5",),
            agentrx=("Misinterpretation of Tool Output",),
        ),
        Category(
            name="miscalculation",
            meaning="a calculation, a deduction or a program is wrong",
            mast=("2.6",),
        ),
        Category(
            name="repetition",
            meaning="work that was done, or had failed, was done again unchanged, or was forgotten",
            mast=("1.3", "1.4", "2.1"),
        ),
        Category(
            name="no verification",
            meaning="a result was accepted that was not checked, or was checked wrongly",
            mast=("3.2", "3.3"),
        ),
        Category(
            name="wrong end",
            meaning="the work was ended too early, or not ended",
            mast=("1.5", "3.1"),
        ),
        Category(
            name="lost hand-off",
            meaning="something that another agent needed was not handed on, or was broken",
            mast=("2.4",),
        ),
        Category(
            name="unclear task",
            meaning="the task lacks something that nobody could know, and nobody asked",
            mast=("2.2",),
            agentrx=("Underspecified User Intent",),
        ),
        Category(
            name="not supported",
            meaning="the task cannot be done with the tools that there are, or is forbidden",
            agentrx=("Intent Not Supported", "Guardrails Triggered"),
        ),
        Category(
            name="system failure",
            meaning="a tool, a service or the machine failed on a request that was right",
            agentrx=("System Failure",),
        ),
    )
}
"""By name. AgentRx's tenth, `Inconclusive`, is a verdict that abstains."""
