"""Where the answer is read from, and what no expression may do to a run."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mappa_core import ToolError
from mappa_mathchat.algebra_workers import WORKERS, AlgebraPool, AlgebraWorker, AnswerBudget
from mappa_mathchat.extract_answer import extract_final_answer, strip_thinking
from mappa_mathchat.grader import Grader, is_correct

HANGING = [
    "9^{9^{9^{9}}}",
    "9999999!",
    "((10^{10})!)!",
    r"\sum_{n=1}^{10^{9}} \sin(n)^{n}",
    r"\prod_{k=1}^{10^{8}} k",
    "(x+1)^{99999}-x",
]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{60}", "60"),
        (r"\boxed{1}, no: \boxed {60}", "60"),
        (r"\boxed{\frac{1}{2}} done", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{x = \boxed{60}}", "60"),
        (r"\boxed{}", ""),
        (r"\boxed{60} as was asked: \boxed{}", ""),
        (r"\boxed{60", None),
        (r"\boxed{59} wait \boxed{60", None),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed 60", None),
        ("the answer is 60", None),
        ("", None),
        (r"<think>\boxed{1}</think> \boxed{60}", "60"),
        (r"\boxed{1} hmm</think> \boxed{60}", "60"),
        (r"\boxed{1} hmm</think> 60", None),
        (r"<think>\boxed{60}</think> it is 60", None),
        (r"<think>so \boxed{60}", None),
        (r"\boxed{60} <think>was that right? \boxed{61}", "60"),
        (r"<think>a <think> inside \boxed{1}</think> \boxed{60}", "60"),
        (r"<think>a</think>\boxed{1}<think>b \boxed{2}</think>\boxed{60}", "60"),
        (r"<thinking>\boxed{1}</thinking>\boxed{60}", "60"),
    ],
)
def test_the_answer_is_the_last_whole_box_outside_think_text(text, answer):
    assert extract_final_answer(text) == answer


def test_text_before_a_closing_tag_that_was_never_opened_is_think_text():
    assert strip_thinking("a</think>b<think>c</think>d") == "bd"
    assert strip_thinking("a</think>b</think>c") == "c"


@pytest.mark.parametrize(
    ("text", "reference", "right"),
    [
        (r"so \boxed{60}.", "060", True),
        (r"\boxed{1 or 60}", "60", False),
        (r"</think> \boxed{\sqrt{3600}}", "60", True),
        ("60", "60", False),
        (r"\boxed{}", "60", False),
    ],
)
async def test_the_grader_and_the_plain_function_agree(text, reference, right):
    grader = Grader()
    assert await grader.is_correct(text, reference) is right
    assert is_correct(text, reference) is right
    await grader.close()


@pytest.fixture(scope="module")
def worker():
    worker = AlgebraWorker()
    yield worker
    worker.close()


def equal(worker, answer, reference, seconds=0.5):
    return AnswerBudget(worker, seconds).equal(answer, reference)


@pytest.mark.parametrize("expression", HANGING)
def test_an_expression_that_hangs_is_wrong_and_the_next_one_is_graded(expression, worker):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not equal(worker, expression, "60", seconds=0.2)
    assert equal(worker, r"\sqrt{3600}", "60")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB, of this process alone


class Counting:
    """An algebra process that needs a second for everything."""

    def __init__(self):
        self.granted = []

    def compare(self, answer, reference, seconds):
        self.granted.append(seconds)
        return ("different", 1.0) if seconds >= 1.0 else ("undecided", seconds)


def test_all_comparisons_of_an_answer_share_one_budget():
    worker = Counting()
    budget = AnswerBudget(worker, 2.5)
    assert not any(budget.equal(rf"\sqrt{{{n}}}", "60") for n in range(32))
    assert worker.granted == [2.5, 1.5, 0.5]


def test_a_set_of_hanging_parts_costs_what_one_of_them_costs(worker):
    parts = ",".join(f"(x+1)^{{{99900 + n}}}-x" for n in range(32))
    roots = ",".join(rf"\sqrt{{{n}}}" for n in range(2, 34))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pool = AlgebraPool(seconds=0.3)
    assert not pool.answers_equal(rf"\{{{parts}\}}", rf"\{{{roots}\}}")
    pool.close()  # waits for the process, whose children count as its own
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = 8.0  # what starting a process may cost; 32 parts cost 9.6
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < started


def test_an_answer_that_was_graded_is_not_graded_again():
    pool = AlgebraPool()
    assert pool.answers_equal(r"\sqrt{3600}", "60")
    pool.close()
    assert pool.answers_equal(r"\sqrt{3600}", "60")
    with pytest.raises(ToolError, match="closed"):
        pool.answers_equal(r"\sqrt{3601}", "60")


async def test_hanging_answers_hold_up_no_other():
    grader = Grader(seconds=30)
    bombs = [asyncio.create_task(grader.are_equal(rf"9^{{9^{{9^{{{n}}}}}}}", "60")) for n in range(7, 6 + WORKERS)]
    await asyncio.sleep(0)
    assert await grader.are_equal(r"\sqrt{3600}", "60")
    assert not any(bomb.done() for bomb in bombs)
    await grader.close()
    assert all(isinstance(one, ToolError) for one in await asyncio.gather(*bombs, return_exceptions=True))


@pytest.mark.parametrize(
    "nonsense", ["(" * 5000, "{" * 3000 + "}" * 3000, "x^" * 900 + "2", r"\frac{" * 800, "\x00", "😀"]
)
def test_nonsense_that_reaches_algebra_is_wrong(nonsense, worker):
    assert not equal(worker, nonsense, "60")


def test_a_lost_process_is_started_again(worker):
    assert equal(worker, "2^{3}", "8")
    os.kill(worker._process.pid, signal.SIGKILL)
    assert equal(worker, "2^{3}", "8")


async def test_many_callers_share_one_grader_and_plain_answers_do_not_wait_for_a_hanging_one():
    grader = Grader(seconds=1.0)
    slow = asyncio.create_task(grader.is_correct(r"\boxed{9^{9^{9^{9}}}}", "60"))
    await asyncio.sleep(0)
    algebra = [asyncio.create_task(grader.is_correct(rf"\boxed{{\sqrt{{{n * n}}}}}", str(n))) for n in range(1, 9)]
    for n in range(500):
        assert await grader.is_correct(rf"\boxed{{{n}}}", f"{n}.0")
    assert not slow.done()
    assert await asyncio.gather(*algebra) == [True] * 8
    assert await slow is False
    await grader.close()


def processes(grader):
    return [worker._process for worker in grader._pool._workers if worker._process is not None]


async def test_plain_answers_start_no_process():
    grader = Grader()
    for text in (r"\boxed{60}", r"\boxed{\frac12}", r"\boxed{the answer}", "nothing", r"\boxed{1 or 60}"):
        await grader.is_correct(text, "60")
    assert not processes(grader)
    await grader.close()


async def test_closing_ends_the_process_and_a_caller_that_waits():
    grader = Grader(seconds=30)
    waiting = asyncio.create_task(grader.is_correct(r"\boxed{9^{9^{9^{9}}}}", "60"))
    while not processes(grader):
        await asyncio.sleep(0.01)
    (process,) = processes(grader)
    await grader.close()
    with pytest.raises(ToolError, match="closed"):
        await waiting
    assert process.poll() is not None


def test_a_process_that_does_not_start_is_an_error_and_no_verdict(monkeypatch, tmp_path):
    monkeypatch.setattr("mappa_mathchat.algebra_workers._PROGRAM", tmp_path / "missing.py")
    worker = AlgebraWorker()
    with pytest.raises(ToolError, match="did not start"):
        worker.compare("1+1", "2", 1.0)
    worker.close()


def test_the_worker_sees_no_secret_of_the_environment(monkeypatch, worker):
    monkeypatch.setenv("SOME_API_KEY", "canary")
    worker._stop()
    assert equal(worker, "2^{3}", "8")
    assert b"canary" not in Path(f"/proc/{worker._process.pid}/environ").read_bytes()


def test_grading_imports_no_algebra_into_this_process():
    code = (
        "import sys; from mappa_mathchat.grader import is_correct\n"
        "assert is_correct(r'\\boxed{\\sqrt{4}}', '2')\n"
        "assert not {'sympy', 'math_verify', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_worker_whose_parent_was_killed_ends():
    code = (
        "import os, signal; from mappa_mathchat.algebra_workers import AlgebraWorker\n"
        "worker = AlgebraWorker(); worker.compare('2^{3}', '8', 1.0); print(worker._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False).stdout)
    for _ in range(500):
        status = Path(f"/proc/{pid}/status")
        if not status.exists() or "(zombie)" in status.read_text(encoding="ascii"):
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} outlived its parent")
