"""Wall time and CPU time of 512 verdicts of a model that takes 200 ms to answer, by how many are asked at once.

Judged are the actions of `scenes.py`, with about 12,000 characters to read each. The model is that of
`peers/coach_server.py`, a process of its own whose CPU time is charged to nobody.

Ours is the coach `openai` as a recipe chooses it, all in: evidence, fences, question, limits, the call by the official
SDK, the strict parser, and the boundary that turns faults into failed verdicts; asked as `mappa coach eval` asks. It
also plays against a server that fails 2 % of the calls, which may cost time and no verdict, and recording on a
cassette.

The rivals, see `peers/coach_*.py`, get the very same messages, prepared beforehand: the bare official SDK with one
shared client, a semaphore and `json.loads`, without retries; litellm; the Judge of verifiers. Every side is one
long-lived process, and they take turns, those that are slow by far in every fifth round. Ratios are medians over the
rounds, with 95 % bootstrap intervals.

    make bench, or, once that made .venv-bench: python bench/coach.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import cpu_seconds, median_interval, parse_arguments, print_result
from numpy.typing import NDArray
from scenes import VERDICTS, of_mathchat

from mappa.look.coach_eval.batch_judge import JudgingLimits, judge_actions
from mappa.rollout.named_coach import NamedCoach
from mappa.store.cassette import CassetteFile, open_cassette
from mappa_coach_openai import mappa_transports
from mappa_core.coaching.llm_coach import llm_coach_offer
from mappa_core.coaching.prompt import PromptBuilder
from mappa_core.coaching.reply_parser import ReplySchema
from mappa_core.records import Scene

HERE = Path(__file__).resolve().parent
PEER_PYTHON = HERE.parent / ".venv-bench" / "bin" / "python"
AT_ONCE, HEADLINE = (8, 32, 64, 256), 64
WARM_UP = 64
SLOW_TURN = 5
OURS, FAULTY, RECORDING = "Mappa", "Mappa, 2 % faults", "Mappa, recording"
BARE, LITELLM, VERIFIERS = "bare openai SDK", "litellm", "verifiers' Judge"
RIVALS = {
    BARE: (sys.executable, "coach_openai.py"),
    LITELLM: (str(PEER_PYTHON), "coach_litellm.py"),
    VERIFIERS: (str(PEER_PYTHON), "coach_verifiers.py"),
}
SLOW = (LITELLM, VERIFIERS)

Taken = NDArray[np.float64]
"""Seconds of wall time and of CPU time, (2,), or of all rounds, (rounds, 2); NaN where a side did not play."""


class Mappa:
    """Our side: a coach for so many calls at once."""

    offer = llm_coach_offer(next(iter(mappa_transports())))

    def __init__(self, runner: asyncio.Runner, scenes: Sequence[Scene], url: str, at_once: int) -> None:
        self._runner = runner
        self._scenes = scenes
        self._asking = JudgingLimits(concurrency=at_once, timeout_s=120.0)
        self.options = self.offer.options()
        self.options.model, self.options.base_url, self.options.api_key_env = "judge", url, None
        self.options.limits.concurrency = at_once
        self._coach = self.offer.build(self.options)

    def record(self, cassette: CassetteFile) -> None:
        self._coach.use_cassette(cassette)

    def warm_up(self) -> None:
        self._runner.run(self._judge(self._scenes[:WARM_UP]))

    def play(self) -> Taken:
        wall, cpu = time.perf_counter(), cpu_seconds()
        self._runner.run(self._judge(self._scenes))
        return np.array([time.perf_counter() - wall, cpu_seconds() - cpu])

    async def _judge(self, scenes: Sequence[Scene]) -> None:
        judge, shown = NamedCoach(name="openai", coach=self._coach), [[scene] for scene in scenes]
        given = await judge_actions(judge, shown, self._asking, review=False, finalize=lambda verdict: verdict)
        lost = [verdict.error for (verdict,) in given if verdict.status != "scored"]
        assert not lost, f"{len(lost)} verdicts were lost, the first by {lost[0]}"

    def close(self) -> None:
        self._runner.run(self._coach.close())


class Rival:
    """A process that asks all questions for every line it is sent, and answers with what that took."""

    def __init__(self, python: str, script: str, asked: str) -> None:
        """Returns when the process has warmed up."""
        self.process = start(python, script)
        self._script = script
        self._answer_to(asked)

    def play(self, at_once: int) -> Taken:
        return np.array(json.loads(self._answer_to(str(at_once))))

    def _answer_to(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._script} ended with exit code {self.process.wait()}; its message is above")
        return answer


def start(python: str, script: str) -> subprocess.Popen[str]:
    # litellm would load a list of prices from the web.
    environment = os.environ | {"PYTHONPATH": str(HERE), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    pipe = subprocess.PIPE
    return subprocess.Popen([python, HERE / "peers" / script], stdin=pipe, stdout=pipe, text=True, env=environment)


async def exam(scenes: Sequence[Scene], ours: Mappa) -> Mapping[str, Any]:
    """What the rivals are asked: the questions of our side (see `peers/fan_out.py`)."""
    questions = PromptBuilder(ours.options)
    asked = [(await questions.build(scene)).messages for scene in scenes]
    schema = ReplySchema(agents=tuple(scenes[0].team)).json_schema
    form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}
    return {
        "url": ours.options.base_url,
        "model": ours.options.model,
        "questions": [[{"role": one.role, "content": one.content} for one in messages] for messages in asked],
        "extra": {"max_completion_tokens": ours.options.max_tokens, "response_format": form},
    }


def measure(rounds: int) -> dict[int, dict[str, Taken]]:
    """What every side took, by calls at once."""
    with ExitStack() as stack:
        server = stack.enter_context(start(sys.executable, "coach_server.py"))
        assert server.stdout is not None
        address = f"http://127.0.0.1:{int(server.stdout.readline())}"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mappa-bench-")))
        runner = stack.enter_context(asyncio.Runner())
        scenes = runner.run(of_mathchat())
        mappas = {
            (name, at_once): stack.enter_context(closing(Mappa(runner, scenes, f"{address}{path}", at_once)))
            for at_once in AT_ONCE
            for name, path in ((OURS, "/v1"), (FAULTY, "/faulty/v1"), (RECORDING, "/v1"))
            if at_once == HEADLINE or name != RECORDING
        }
        cassette = open_cassette("record", folder / "cassette.db")
        assert cassette is not None
        mappas[RECORDING, HEADLINE].record(stack.enter_context(closing(cassette)))
        asked = json.dumps(runner.run(exam(scenes, mappas[OURS, HEADLINE])))
        rivals = {name: Rival(python, script, asked) for name, (python, script) in RIVALS.items()}
        for rival in rivals.values():
            stack.enter_context(rival.process)
        for ours in mappas.values():
            ours.warm_up()
        gc.collect()
        gc.freeze()
        taken = {}
        for at_once in AT_ONCE:
            sides = {name: ours.play for (name, those), ours in mappas.items() if those == at_once}
            sides |= {name: partial(rival.play, at_once) for name, rival in rivals.items()}
            taken[at_once] = play(sides, rounds if at_once == HEADLINE else max(1, rounds // 3), f"{at_once} at once")
        return taken


def play(sides: Mapping[str, Callable[[], Taken]], rounds: int, title: str) -> dict[str, Taken]:
    taken = {name: np.full((rounds, 2), np.nan) for name in (OURS, BARE, *sides)}
    for number in range(rounds):
        playing = [name for name in taken if number % SLOW_TURN == 0 or name not in SLOW]
        for name in playing if number % 2 else reversed(playing):
            taken[name][number] = sides[name]()
        walls = ", ".join(f"{name} {taken[name][number, 0]:.2f} s" for name in playing)
        print(f"{title}, round {number + 1}: {walls}", flush=True)
    return taken


def ratios(one: Taken, other: Taken) -> Taken:
    """Wall time and CPU time of `one` by those of `other`, over the rounds that both played."""
    both = ~np.isnan(one + other).any(axis=1)
    return one[both] / other[both]


def print_table(taken: Mapping[int, Mapping[str, Taken]]) -> None:
    print(
        "\n" + "wall s, ms of CPU per verdict".ljust(32) + "".join(f"{f'{at_once} at once':>18}" for at_once in taken)
    )
    for name in taken[HEADLINE]:
        print(name.ljust(32) + "".join(_cell(sides.get(name)) for sides in taken.values()))


def _cell(taken: Taken | None) -> str:
    if taken is None:
        return " " * 18
    wall, cpu = np.nanmedian(taken, axis=0)
    return f"{wall:>11.2f} {cpu / VERDICTS * 1e3:>6.2f}"


def print_ratios(taken: Mapping[int, Mapping[str, Taken]]) -> None:
    pairs = [(OURS, BARE), (OURS, LITELLM), (OURS, VERIFIERS), (FAULTY, OURS), (RECORDING, OURS)]
    for at_once, sides in taken.items():
        print(f"\n{at_once} at once")
        for one, other in pairs:
            if one in sides:
                wall, cpu = (_interval(column) for column in ratios(sides[one], sides[other]).T)
                print(f"  {one} by {other}: wall {wall}, CPU {cpu}")


def _interval(values: NDArray[np.float64]) -> str:
    middle, low, high = median_interval(values)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="of 64 at once; a third of them of all others")
    rounds = parse_arguments(parser, rounds=1).rounds
    if not PEER_PYTHON.exists():
        print(f"there is no {PEER_PYTHON}: run `make bench`, which installs the rivals", file=sys.stderr)
        raise SystemExit(2)
    taken = measure(rounds)
    print_table(taken)
    print_ratios(taken)
    print_result(
        "coach",
        ratios(taken[HEADLINE][OURS], taken[HEADLINE][BARE])[:, 0],
        unit="x the wall time of",
        against=f"the bare openai SDK at {HEADLINE} calls at once",
    )


if __name__ == "__main__":
    main()
