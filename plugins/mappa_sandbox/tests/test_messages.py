"""What is sent to where programs run, and what is made of the answer."""

import base64
import json
import subprocess
import sys

import pytest

from mappa_core import ToolLimits
from mappa_core.sandbox import FileChange
from mappa_sandbox.isolation.job import SandboxConfig, SandboxJob
from mappa_sandbox.messages import program_job, program_result, program_runner


def kept(head: bytes, tail: bytes = b"", cut: int = 0) -> dict[str, object]:
    return {"head": base64.b64encode(head).decode(), "tail": base64.b64encode(tail).decode(), "cut": cut}


def reply(**fields: object) -> dict[str, object]:
    return {
        "exit": 0,
        "limit": None,
        "stdout": kept(b""),
        "stderr": kept(b""),
        "seconds": 0.25,
        "watched": ["wall"],
        **fields,
    }


def result(answer, limits=None, folder="/some/space", files=(), irregular_files=()):
    limits = limits or ToolLimits()
    return program_result(
        answer, limits, folder=folder, files=files, irregular_files=irregular_files, sandbox="somewhere"
    )


def test_a_job_survives_json():
    job = program_job("print('ü')", ToolLimits(processes=7), folder="/a b", arguments=("x",), inputs=("/in",))
    assert SandboxJob.from_json(job.to_json()) == job
    assert (job.processes, job.head_bytes + job.tail_bytes) == (7, ToolLimits().output_bytes)


def test_a_config_survives_json():
    config = SandboxConfig(
        backend="none", scratch="/s", preload=("a", "b"), readable=("/usr",), hidden=("/usr/x",), held=("cpu",)
    )
    assert SandboxConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(("code", "status"), [(0, "ok"), (1, "error"), (-9, "error")])
def test_the_status_follows_the_exit_code(code, status):
    done = result(reply(exit=code, stdout=kept(b"out"), stderr=kept(b"err")))
    assert (done.status, done.exit_code, done.stdout, done.stderr) == (status, code, "out", "err")
    assert (done.sandbox, done.seconds, done.truncated, done.attempts) == ("somewhere", 0.25, False, 1)
    assert (done.limit, done.watched) == (None, ("wall",))


@pytest.mark.parametrize(
    ("limit", "status", "reason"),
    [
        ("wall", "timeout", "the program used more than 3 s of wall time"),
        ("cpu", "timeout", "the program used more than 2.5 s of CPU time"),
        ("memory", "error", "the program and what it started used more than 1.5 MiB of memory"),
        ("processes", "error", "more than 5 processes and threads were running"),
        ("disk", "error", "files took more than 2 MiB; the newest are removed"),
        ("files", "error", "there were more than 9 files and folders, or some out of reach; the newest are removed"),
        ("hidden", "error", "a process could not be inspected, and so not held to its limits"),
    ],
)
def test_a_limit_is_named_in_the_last_line(limit, status, reason):
    limits = ToolLimits(
        wall_s=3, cpu_s=2.5, memory_bytes=3 << 19, processes=5, workspace_bytes=2 << 20, workspace_files=9
    )
    done = result(reply(exit=None, limit=limit, stderr=kept(b"half")), limits)
    assert (done.status, done.exit_code, done.stderr) == (status, None, f"half\n[stopped: {reason}]\n")
    assert (done.limit, done.watched) == (limit, ("wall",))


def test_irregular_files_are_named_up_to_a_number():
    done = result(reply(), irregular_files=[f"l{number} (symbolic link)" for number in range(7)])
    assert done.status == "ok"
    assert done.stderr.startswith("[not kept, as these are no regular files: l0 (symbolic link), l1 ")
    assert done.stderr.endswith("l4 (symbolic link) and 2 more]\n")


def test_a_program_that_killed_its_supervisor_is_an_error_of_its_own():
    files = (FileChange(path="x", kind="created", size=1, sha256="0"),)
    done = result({"killed": 9}, files=files)
    assert (done.status, done.exit_code, done.files, done.sandbox) == ("error", None, files, "somewhere")
    assert "killed or stopped the process that watches it" in done.stderr


def test_the_folder_and_addresses_in_output_are_replaced():
    text = b"/some/space/a /some/spaces /some/space: <object object at 0x7f0123456789>"
    assert result(reply(stdout=kept(text))).stdout == "./a /some/spaces .: <object object at 0x0>"


def test_a_cut_is_marked_and_cuts_no_character_in_two():
    done = result(reply(stdout=kept("aü".encode()[:2], "üb".encode()[1:], cut=100)))
    assert done.truncated
    assert done.stdout == "a\n[... 100 bytes cut ...]\nb"


def test_the_runner_runs_a_job_with_nothing_but_python(tmp_path):
    (tmp_path / "runner.zip").write_bytes(program_runner())
    (tmp_path / "folder").mkdir()
    code = (
        "import os, subprocess, sys\nprint(sys.argv, os.getcwd())\nopen('made', 'w').close()\n"
        "subprocess.Popen(['sleep', '100'], start_new_session=True)\nsys.exit(4)"
    )
    job = program_job(code, ToolLimits(wall_s=60), folder=str(tmp_path / "folder"), arguments=["a"])
    (tmp_path / "order.json").write_text(job.to_json())
    command = [sys.executable, "-I", "-S", "runner.zip", "order.json", "reply.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    answered = result(json.loads((tmp_path / "reply.json").read_text()), folder=str(tmp_path / "folder"))
    assert (answered.exit_code, answered.stdout) == (4, "['<python>', 'a'] .\n")
    assert (tmp_path / "folder/made").exists()


def test_the_runner_says_when_the_program_killed_its_supervisor(tmp_path):
    (tmp_path / "runner.zip").write_bytes(program_runner())
    job = program_job("import os; os.kill(os.getppid(), 9)", ToolLimits(), folder=str(tmp_path))
    (tmp_path / "order.json").write_text(job.to_json())
    command = [sys.executable, "runner.zip", "order.json", "reply.json"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "reply.json").read_text()) == {"killed": 9}


def test_the_runner_is_the_same_every_time():
    assert program_runner() == program_runner()
