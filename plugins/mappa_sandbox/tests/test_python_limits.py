"""A program is stopped at its limits, and nothing of it is left, however it tries to stay."""

import time

import pytest

from mappa_core.sandbox import split_limit

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def tool(caged):
    return caged


async def test_a_loop_ends_at_the_wall_limit_and_what_it_wrote_is_kept(run):
    result = await run("print('on', flush=True)\nopen('f', 'w').write('1')\nwhile True: pass", wall_s=0.3)
    assert (result.status, result.exit_code, result.stdout) == ("timeout", None, "on\n")
    assert result.stderr == "[stopped: the program used more than 0.3 s of wall time]\n"
    assert [change.path for change in result.files] == ["f"]
    assert result.seconds >= 0.3


async def test_sleeping_counts_as_wall_time_and_stderr_keeps_its_lines(run):
    result = await run("import sys, time\nsys.stderr.write('half')\nsys.stderr.flush()\ntime.sleep(60)", wall_s=0.3)
    assert result.stderr == "half\n[stopped: the program used more than 0.3 s of wall time]\n"


async def test_a_program_that_stops_itself_ends_at_the_wall_limit(run):
    assert (await run("import os; os.kill(os.getpid(), 19)", wall_s=0.3)).status == "timeout"


async def test_spinning_ends_at_the_cpu_limit(run):
    result = await run("while True: pass", cpu_s=1.0)
    assert (result.status, result.exit_code) == ("timeout", None)
    assert result.stderr == "[stopped: the program used more than 1 s of CPU time]\n"


async def test_a_program_that_ignores_the_cpu_limit_is_killed(run):
    result = await run("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", cpu_s=1.0)
    assert (result.status, result.exit_code) == ("timeout", None)


@pytest.mark.parametrize("code", ["x = 'a' * (1 << 31)", "x = []\nwhile True: x.append(' ' * (1 << 20))"])
async def test_memory_is_limited(run, code):
    result = await run(code, memory_bytes=256 << 20)
    assert (result.status, result.exit_code) == ("error", 1)
    assert result.stderr.splitlines()[-1] == "MemoryError"


async def test_a_file_cannot_grow_over_its_limit(run):
    result = await run("open('big', 'wb').write(bytes(1 << 20))", file_bytes=1 << 16)
    assert result.stderr.splitlines()[-1] == "OSError: [Errno 27] File too large"
    assert [(change.path, change.size) for change in result.files] == [("big", 1 << 16)]


async def test_no_core_is_dumped(run):
    result = await run("import os, resource\nprint(resource.getrlimit(resource.RLIMIT_CORE), flush=True)\nos.abort()")
    assert (result.exit_code, result.stdout, result.files) == (-6, "(0, 0)\n", ())


async def test_limits_hold_for_children_too(run):
    child = "x = 'a' * (1 << 31)"
    result = await run(f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {child!r}]).returncode)")
    assert result.stdout == "1\n" and "MemoryError" in result.stderr


async def test_a_flood_of_output_is_read_kept_at_both_ends_and_dropped(run):
    result = await run(
        "import sys\nprint('first')\nfor _ in range(200):\n    sys.stdout.write('x' * 100_000)\nprint('last')",
        output_bytes=3000,
    )
    head, tail = split_limit(3000)
    assert (result.status, result.truncated) == ("ok", True)
    before, after = result.stdout.split(f"\n[... {20_000_011 - 3000} bytes cut ...]\n")
    assert (len(before), len(after)) == (head, tail)
    assert before.startswith("first\nx") and after.endswith("xlast\n")


async def test_output_up_to_the_limit_is_whole(run):
    result = await run("print('x' * 2999)", output_bytes=3000)
    assert result.stdout == "x" * 2999 + "\n" and not result.truncated


async def test_a_cut_through_a_character_leaves_it_out(run):
    result = await run("print('\\u20ac' * 1000, end='')", output_bytes=100)
    assert "\ufffd" not in result.stdout
    before, after = result.stdout.split("\n[... 2900 bytes cut ...]\n")
    assert set(before) == set(after) == {"\u20ac"}


async def test_a_flood_on_both_streams_does_not_stall(run):
    code = "import sys, threading\ndef flood(f):\n    for _ in range(300): f.write('y' * 10_000)\n"
    code += "threading.Thread(target=flood, args=(sys.stderr,)).start()\nflood(sys.stdout)"
    result = await run(code)
    assert result.status == "ok" and result.truncated and len(result.stderr) < 70_000


BACKGROUND = {
    "child": "import subprocess\nsubprocess.Popen(['sleep', '{mark}'])",
    "own session": "import subprocess\nsubprocess.Popen(['sleep', '{mark}'], start_new_session=True)",
    "double fork": "import os, time\n"
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.execvp('sleep', ['sleep', '{mark}'])\n"
    "    os._exit(0)\nos.wait()",
    "shell": "import os\nos.system('setsid nohup sleep {mark} & sleep {mark} &')",
    "ignores signals": "import subprocess, sys\n"
    "subprocess.Popen(['sh', '-c', 'trap \"\" TERM HUP INT; sleep {mark}; sleep {mark}'], start_new_session=True)",
    "stopped": "import os, subprocess\nos.kill(subprocess.Popen(['sleep', '{mark}']).pid, 19)",
    "in an exit function": "import atexit, subprocess\natexit.register(subprocess.Popen, ['sleep', '{mark}'])",
}


@pytest.mark.parametrize("code", BACKGROUND.values(), ids=BACKGROUND.keys())
@pytest.mark.parametrize(
    "ending", ["", "\nprint('end', flush=True)\nwhile True: pass", "\n1/0"], ids=["ok", "timeout", "error"]
)
async def test_no_child_outlives_its_program_or_is_waited_for(run, processes, code, ending):
    mark = f"98765{time.monotonic_ns() % 10**9}"
    result = await run(code.format(mark=mark) + ending, wall_s=0.5 if "while" in ending else 20.0)
    assert result.status == {"": "ok", "\n1/0": "error"}.get(ending, "timeout")
    assert processes(mark) == []


async def test_output_of_children_that_hold_stdout_is_kept_and_not_waited_for(run):
    result = await run(
        "import subprocess, time\nsubprocess.Popen(['sh', '-c', 'echo child; sleep 600'])\n"
        "time.sleep(0.3)\nprint('main')"
    )
    assert (result.status, sorted(result.stdout.split())) == ("ok", ["child", "main"])


async def test_many_processes_are_all_killed_at_the_end(run, processes):
    mark = f"98766{time.monotonic_ns() % 10**9}"
    code = f"import subprocess\nfor _ in range(40): subprocess.Popen(['sleep', '{mark}'], start_new_session=True)"
    assert (await run(code)).status == "ok"
    assert processes(mark) == []
