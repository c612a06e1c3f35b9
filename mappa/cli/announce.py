"""Announce which providers will receive data and where programs will run, before a command starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mappa.cli.console import Console
from mappa.rollout.counterfactual import CounterfactualBound
from mappa_core.protocols import Provider
from mappa_core.records import Sandbox


def announce_providers(console: Console, providers: Sequence[Provider]) -> None:
    """Print a line per provider."""
    for provider in providers:
        cost = "" if provider.priced else "; the price of its tokens is unknown"
        wait = "; replies come in batches, minutes to a day after the calls" if provider.batched else ""
        text = f"what agents see and write is sent to {provider.name} ({provider.model}) at {provider.host}{wait}{cost}"
        console.print(text, style="yellow", soft_wrap=True, highlight=False)


def announce_sandboxes(console: Console, sandboxes: Mapping[str, Sandbox], *, quiet: bool = False) -> None:
    """Print a line per tool that runs programs, and one per warning; with `quiet` only the warnings."""
    for tool, sandbox in sandboxes.items():
        if not quiet:
            detail = f" ({sandbox.detail})" if sandbox.detail else ""
            where = f"programs of the tool {tool} run in {sandbox.name}{detail}"
            console.print(where, soft_wrap=True, highlight=False, markup=False)
        for warning in sandbox.warnings:
            text = f"programs of the tool {tool}: {warning}"
            console.print(text, style="yellow", soft_wrap=True, highlight=False, markup=False)


def announce_counterfactuals(console: Console, extra: CounterfactualBound) -> None:
    """Print a line on the counterfactual rollouts added to every iteration."""
    if extra.rollouts is None or extra.actions is None or extra.tokens is None:
        bound = "how many is not known, as the workflow does not say how often its agents act at most"
    else:
        bound = f"at most {extra.rollouts:,.0f} with {extra.actions:,.0f} actions of {extra.tokens:,.0f} sampled tokens"
    text = f"every iteration plays counterfactual rollouts beside its own: {bound}"
    console.print(text, style="yellow", soft_wrap=True, highlight=False)
