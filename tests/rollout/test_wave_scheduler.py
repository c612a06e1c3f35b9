"""Waves hold the same requests in the same order whatever took how long."""

import asyncio
import random

import pytest

from mappa.rollout.wave_scheduler import WaveScheduler
from mappa.testing import ScriptedSampler
from mappa_core import Sampling, WorkflowError


class Waves(ScriptedSampler):
    """Notes which requests came in one tick of the event loop."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, sampling: "ok")
        self.waves: list[list[int]] = []
        self._open = False

    async def sample(self, tokens, sampling):
        if not self._open:
            self.waves.append([])
            self._open = True
            asyncio.get_running_loop().call_soon(self._shut)
        self.waves[-1].append(sampling.seed)
        return await super().sample(tokens, sampling)

    def _shut(self) -> None:
        self._open = False


async def rollouts(scheduler: WaveScheduler, sampler: Waves, actions: dict[str, int], seed: int) -> None:
    delays = random.Random(seed)

    async def play(name: str) -> None:
        for action in range(actions[name]):
            await asyncio.sleep(delays.random() / 200)
            await scheduler.sample(name, sampler, sampler.render([]), Sampling(seed=int(name) * 10 + action))
        scheduler.remove_trajectory(name)

    for name in actions:
        scheduler.add_trajectory(name)
    await asyncio.gather(*(play(name) for name in actions))


async def test_waves_do_not_depend_on_how_long_tools_take():
    seen = []
    for seed in range(5):
        sampler = Waves()
        await rollouts(WaveScheduler(waves=True), sampler, {"3": 1, "1": 3, "2": 2}, seed)
        seen.append(sampler.waves)
    assert seen == [[[10, 20, 30], [11, 21], [12]]] * 5


async def test_request_without_waves_starts_at_once():
    sampler, scheduler = Waves(), WaveScheduler(waves=False)
    scheduler.add_trajectory("1")
    scheduler.add_trajectory("2")
    completion = await asyncio.wait_for(scheduler.sample("1", sampler, sampler.render([]), Sampling()), 5)
    assert completion.text == "ok"


async def test_finished_trajectory_does_not_block_the_wave():
    sampler, scheduler = Waves(), WaveScheduler(waves=True)
    scheduler.add_trajectory("1")
    scheduler.add_trajectory("2")
    request = asyncio.create_task(scheduler.sample("1", sampler, sampler.render([]), Sampling()))
    await asyncio.sleep(0.01)
    assert not request.done()
    scheduler.remove_trajectory("2")
    assert (await asyncio.wait_for(request, 5)).text == "ok"


async def test_two_actions_of_one_trajectory_at_once_are_refused_in_waves():
    sampler, scheduler = Waves(), WaveScheduler(waves=True)
    scheduler.add_trajectory("1")
    scheduler.add_trajectory("2")
    first = asyncio.create_task(scheduler.sample("1", sampler, sampler.render([]), Sampling()))
    await asyncio.sleep(0)
    with pytest.raises(WorkflowError, match="deterministic=false"):
        await scheduler.sample("1", sampler, sampler.render([]), Sampling())
    first.cancel()
