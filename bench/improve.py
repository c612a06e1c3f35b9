"""Whether blame makes a search for prompts faster, and whether it reports gains where there are none.

Team: the relay of mappa-gepa, whose agents follow the instructions in their prompts. *Blame pays*: a sentence is taken
out of one agent's prompt, another one for every seed; the same library searches with the verdicts on the agent's own
actions and the agent to change chosen by blame, and with the team's result alone and agents in turn, for the same
rollouts. A defect is fixed where the prompts that were chosen hold the sentence again. *Honest*: prompts without a
defect, a team that overlooks every tenth instruction, and a proposer whose sentences nobody heeds, so that luck alone
makes candidates differ.

The ratio is rollouts to the fix with blame over those without: the median over the seeds, and its 95 % bootstrap
interval.

    python bench/improve.py [--seeds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

import numpy as np
from measure import parse_arguments, print_result

import mappa_gepa
from mappa.runs import RunReader
from mappa.sessions import compose
from mappa.statistics import mean_interval, paired_gain
from mappa_core.plugins import Registry, load_plugins
from mappa_gepa.improve import Improvement, improve
from mappa_gepa.options import ImproveOptions
from mappa_gepa.relay.team import DUTIES, Relay
from mappa_gepa.stored_search import StoredSearch

ROLLOUTS = 300
ARMS = {
    "blame": ImproveOptions(proposer="instruction-editor", rollouts=ROLLOUTS),
    "outcome": ImproveOptions(
        proposer="instruction-editor", rollouts=ROLLOUTS, feedback="outcome", choice="round_robin", patience=ROLLOUTS
    ),
}
IDLE = ImproveOptions(proposer="instruction-editor", proposer_settings=("mode=idle",), rollouts=ROLLOUTS)
IDLE_SLIP = 0.1


@dataclass(frozen=True)
class Fix:
    """Whether a search fixed the defect, and after how many rollouts; `ROLLOUTS` if it did not."""

    fixed: bool
    rollouts: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parse_arguments(parser, seeds=1).seeds)
    registry = load_plugins(only=[], modules={"gepa": mappa_gepa})
    with tempfile.TemporaryDirectory() as root:
        pays = {arm: [fix_defect(registry, root, seed, options) for seed in seeds] for arm, options in ARMS.items()}
        honest = [search(registry, root, seed, IDLE, slip=IDLE_SLIP) for seed in seeds]
    print(json.dumps({"seeds": len(seeds), "blame_pays": pays_figures(pays), "honest": honest_figures(honest)}))
    ratios = np.array([mine.rollouts / other.rollouts for mine, other in zip(*pays.values(), strict=True)])
    print_result("improve", ratios, unit="rollouts to a fix", against="gepa with the team's outcome, agents in turn")


def search(
    registry: Registry,
    root: str,
    seed: int,
    options: ImproveOptions,
    *,
    slip: float = 0.03,
    prompts: Mapping[str, str] = MappingProxyType({}),
) -> Improvement:
    """Search with the original prompts but for `prompts`."""
    words = [f"run.root={root}", f"seed={seed}", f"tasks.options.seed={seed}", f"policies.default.options.slip={slip}"]
    words += [
        f"agents.{agent}.prompt={json.dumps(text)}"
        for agent, text in {"sorter": Relay.prompts["sorter"], **prompts}.items()
    ]
    composed = compose(registry, "gepa", overrides=words)
    return asyncio.run(improve(composed, registry, StoredSearch(options=options)))


def fix_defect(registry: Registry, root: str, seed: int, options: ImproveOptions) -> Fix:
    """Search after a sentence was taken out of one prompt, both drawn by the seed."""
    random = Random(seed)
    agent = random.choice(sorted(DUTIES))
    duty = random.choice(DUTIES[agent])
    prompt = "\n".join(line for line in Relay.prompts[agent].splitlines() if line != duty)
    found = search(registry, root, seed, options, prompts={agent: prompt})
    with RunReader(found.folder) as run:
        mended = {one.body["number"] for one in run.events("candidate") if duty in one.body["prompts"][agent]}
        kept = [
            place for place, row in enumerate(run.trajectories, 1) if row.split == "eval" and row.iteration in mended
        ]
    fixed = duty in found.prompts[agent]
    return Fix(fixed=fixed, rollouts=kept[0] if fixed else ROLLOUTS)


def pays_figures(pays: dict[str, list[Fix]]) -> dict[str, object]:
    """Shares that were fixed with the paired gain, and rollouts to a fix with the ratio of their means."""
    fixed = {arm: np.array([float(fix.fixed) for fix in fixes]) for arm, fixes in pays.items()}
    rollouts = {arm: np.array([float(fix.rollouts) for fix in fixes]) for arm, fixes in pays.items()}
    gain = paired_gain(fixed["outcome"], fixed["blame"])
    saved = mean_interval(rollouts["outcome"] - rollouts["blame"])
    return {
        "fixed": {arm: float(values.mean()) for arm, values in fixed.items()},
        "gain": [gain.mean, gain.low, gain.high],
        "rollouts_to_fix": {arm: float(values.mean()) for arm, values in rollouts.items()},
        "rollouts_saved": [saved.mean, saved.low, saved.high],
        "ratio": float(rollouts["blame"].mean() / rollouts["outcome"].mean()),
    }


def honest_figures(found: list[Improvement]) -> dict[str, object]:
    """Searches that changed a prompt, and those whose reported gain has an interval above or below 0."""
    gains = [one.gain for one in found if one.gain is not None]
    bounds = [(gain.low, gain.high) for gain in gains if gain.low is not None and gain.high is not None]
    return {
        "changed": len(gains),
        "significant_gains": sum(low > 0 for low, _ in bounds),
        "significant_losses": sum(high < 0 for _, high in bounds),
        "mean_gain": float(np.mean([gain.mean for gain in gains])) if gains else 0.0,
    }


if __name__ == "__main__":
    main()
