"""Whether `mappa advise` recommends the right fix of a team with a planted defect, and none where nothing is wrong.

Teams are the relay of mappa-gepa, whose agents follow the instructions in their prompts and overlook 3 % of them. By
seed one agent is drawn, and one thing is wrong: its prompt lacks an instruction (*prompt*); its model overlooks 40 % of
them (*model*); hand-offs lose a word in 30 % of tasks, which is no agent's fault (*tool*); or nothing (*nothing*).
120 held-out tasks are played with the coach, and then advice is asked for with 400 rollouts, a proposer, and for each
agent a model that is as good as the one that the others have.

What would be seen were it not so: right in fewer than 90 % of the teams with a defect in a prompt or a model; a fix
recommended in more than 5 % of the teams where no fix of an agent can help (*tool*, *nothing*).

    python docs/evidence/advise.py [--seeds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import mappa_gepa
from mappa_core.commands import ComposedConfig, compose, evaluate_standalone, restore
from mappa_core.plugins import Registry, load_plugins
from mappa_gepa.advise.advice import Advice, advise
from mappa_gepa.advise.trials import TrialOptions
from mappa_gepa.improve import Watcher
from mappa_gepa.relay.team import DUTIES, Relay

TEAMS = ("prompt", "model", "tool", "nothing")
ROLLOUTS = 400
GOOD, BAD = 0.03, 0.4
"""Shares of instructions that a good model and a bad one overlook."""
LOSS = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--teams", nargs="+", choices=TEAMS, default=TEAMS)
    chosen = parser.parse_args()
    registry = load_plugins(only=[], modules={"gepa": mappa_gepa})
    figures = {}
    with tempfile.TemporaryDirectory() as root:
        for team in chosen.teams:
            start = time.perf_counter()
            found = [advise_planted(registry, root, team, seed) for seed in range(chosen.seeds)]
            figures[team] = {
                "right": sum(is_right(team, agent, advice) for agent, advice in found),
                "fix_recommended": sum(advice.chosen is not None for _, advice in found),
                "choices": dict(Counter(advice.choice for _, advice in found)),
                "rollouts": max(advice.rollouts for _, advice in found),
                "seconds": round(time.perf_counter() - start),
            }
            print(team, figures[team], flush=True)
    print(json.dumps({"seeds": chosen.seeds, "rollouts": ROLLOUTS, **figures}))


def advise_planted(registry: Registry, root: str, team: str, seed: int) -> tuple[str, Advice]:
    """The agent that was drawn, and the advice on a team with the defect."""
    agent = Random(seed).choice(sorted(DUTIES))
    words = [f"run.root={root}", f"seed={seed}", f"tasks.options.seed={seed}", "tasks.options.eval=120"]
    words += [*team_words(team, agent, seed), "eval.coach=true"]
    words += [_model_word("default", GOOD), _model_word("other", GOOD)]
    composed = compose(registry, "gepa", overrides=words)
    run = asyncio.run(evaluate_standalone(composed, registry)).folder
    return agent, asyncio.run(_advise(registry, run))


def team_words(team: str, agent: str, seed: int) -> list[str]:
    """Settings that plant the defect of `team`, and mend that of the recipe."""
    prompts = {"sorter": Relay.prompts["sorter"]}
    words: list[str] = []
    if team == "prompt":
        duty = Random(seed).choice(DUTIES[agent])
        prompts[agent] = "\n".join(line for line in Relay.prompts[agent].splitlines() if line != duty)
    elif team == "model":
        words = [f"agents.{agent}.policy=small", _model_word("small", BAD)]
    elif team == "tool":
        words = [f"workflow.options.loss={LOSS}"]
    return [*words, *(f"agents.{name}.prompt={json.dumps(text)}" for name, text in prompts.items())]


def is_right(team: str, agent: str, advice: Advice) -> bool:
    """Whether the advice names the defect of `team`."""
    if advice.chosen is None:
        return advice.choice == {"tool": "tools or tasks", "nothing": "nothing"}.get(team)
    return (advice.chosen.fix.kind, advice.chosen.fix.agent) == (team, agent)


async def _advise(registry: Registry, run: Path) -> Advice:
    def variant(*words: str) -> ComposedConfig:
        return restore(registry, run, ("run.name=null", *words))

    options = TrialOptions(rollouts=ROLLOUTS, proposer="instruction-editor")
    models = [(agent, "other") for agent in DUTIES]
    return await advise(run, variant, registry, agents=(), models=models, options=options, watcher=Watcher())


def _model_word(policy: str, slip: float) -> str:
    options = {"slip": slip, "price": {"input": 0.1, "output": 0.4}}
    return f"policies.{policy}={json.dumps({'kind': 'api', 'use': 'instruction-follower', 'options': options})}"


if __name__ == "__main__":
    main()
