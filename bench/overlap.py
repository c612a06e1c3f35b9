"""How much time it saves that coaches are asked in the background.

Teams of 3 agents with 4 turns each play 32 episodes at once; an action takes 50 ms to sample and a verdict 200 ms. The
rival awaits every verdict in line, as a loop does that asks its coach before it goes on. Both run the same collector,
store and all, interleaved. The best that could come out is 12 * (50 + 200) / (12 * 50 + 200) = 3.75.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import parse_arguments, print_result

from mappa.rollout.collector import RolloutCollector
from mappa.rollout.named_coach import NamedCoach
from mappa.rollout.team import Job, Team
from mappa.store.writer import Store
from mappa.testing import ScriptedSampler
from mappa_core.protocols import Coach, Stage, Workflow
from mappa_core.records import Completion, Int32, Message, Role, Sampling, Scene, Task, Verdict

AGENTS, TURNS, EPISODES = ("one", "two", "three"), 4, 32
SAMPLING_S, VERDICT_S = 0.050, 0.200


class Slow(ScriptedSampler):
    """Takes its time to say `ok`."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, sampling: "ok")

    async def sample(self, tokens: Int32, sampling: Sampling) -> Completion:
        await asyncio.sleep(SAMPLING_S)
        return await super().sample(tokens, sampling)


class Pondering(Coach):
    async def score(self, scene: Scene) -> Verdict:
        await asyncio.sleep(VERDICT_S)
        return Verdict.scored(7, "fine")


class Relay(Workflow):
    """Every agent acts in turn; `in_line` awaits each verdict before the next action."""

    agents = dict.fromkeys(AGENTS, Role(brief="plays its part"))

    def __init__(self, *, in_line: bool) -> None:
        self._in_line = in_line

    async def run(self, stage: Stage) -> None:
        for agent in AGENTS:
            for _ in range(TURNS):
                step = await stage.act(agent, [Message(role="user", content=stage.task.prompt)])
                if self._in_line:
                    await stage.verdict(step)
        stage.record(correct=1.0)


async def seconds(*, in_line: bool) -> float:
    """Wall time of all episodes."""
    team = Team(
        workflow=Relay(in_line=in_line),
        policy_of=dict.fromkeys(AGENTS, "slow"),
        samplers={"slow": Slow()},
        sampling=dict.fromkeys(AGENTS, Sampling()),
        tools={},
        limits={},
        retries={},
        coach_of=dict.fromkeys(AGENTS, NamedCoach(name="pondering", coach=Pondering())),
    )
    jobs = [Job(task=Task(id=f"{n}", prompt="go"), split="train", iteration=0, sample=0) for n in range(EPISODES)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        Store.create(path)
        store = Store(path)
        collector = RolloutCollector(team, recorder=store, archive=Path(folder), concurrency=EPISODES, waves=False)
        started = time.perf_counter()
        trajectories = await collector.collect(jobs)
        elapsed = time.perf_counter() - started
        store.close()
    assert all(len(one.verdicts) == len(AGENTS) * TURNS for one in trajectories)
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parse_arguments(parser, rounds=1).rounds
    ratios = []
    for place in range(rounds):
        order = (True, False) if place % 2 else (False, True)
        took = {in_line: asyncio.run(seconds(in_line=in_line)) for in_line in order}
        ratios.append(took[True] / took[False])
        print(f"round {place + 1}: in line {took[True]:.2f} s, in the background {took[False]:.2f} s")
    print_result("overlap", np.array(ratios), unit="x faster", against="awaiting each verdict in line")


if __name__ == "__main__":
    main()
