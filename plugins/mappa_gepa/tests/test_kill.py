"""A search that is killed at any moment ends as if it had not been."""

import json
import os
import signal
import subprocess
import sys

import pytest

KILLED_AT = """
import os, signal, sys
from mappa_gepa.relay.models import InstructionFollower

calls, last = open("calls.txt", "a"), int(sys.argv.pop(1))
complete, made = InstructionFollower.complete, 0

async def counted(self, request):
    global made
    if made == last:
        os.kill(os.getpid(), signal.SIGKILL)
    reply = await complete(self, request)
    made += 1
    print(request.seed, file=calls, flush=True)
    return reply

InstructionFollower.complete = counted
from mappa.cli import main
raise SystemExit(main(sys.argv[1:]))
"""
SMALL = ["--rollouts", "120", "--propose", "12", "--choose", "6", "--report", "12", "--minibatch", "2"]
ENDLESS = 10**9


def run(folder, calls, *arguments):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", KILLED_AT, str(calls), "improve", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})


@pytest.mark.soak
def test_search_killed_at_ten_points_ends_equal_and_pays_for_no_call_twice(tmp_path):
    start = ["--plugin", "gepa", "--proposer", "instruction-editor", "--name", "x", "--json", *SMALL]
    start += ["sampling.concurrency=1", "--feedback", "outcome"]
    whole = run(tmp_path / "whole", ENDLESS, *start)
    arguments, kills = start, 0
    for stop in (3, 11, 20, 29, 31, 8, 40, 17, 26, 35):
        killed = run(tmp_path / "killed", stop, *arguments)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        arguments, kills = ["--resume", "runs/x", "--json"], kills + 1
    ended = run(tmp_path / "killed", ENDLESS, *arguments)
    assert kills == 10 and ended.returncode == whole.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == json.loads(whole.stdout)
    calls = [(tmp_path / name / "calls.txt").read_text().split() for name in ("whole", "killed")]
    assert calls[1] == calls[0], "every call is made once, in the same order"
