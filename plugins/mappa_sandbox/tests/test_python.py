"""A program runs as under a plain interpreter, in its own process and folder."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mappa_core import ToolError, ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox.environment import clean_environment
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def tool(caged):
    return caged


SAME_AS_PLAIN = {
    "output": "import sys\nprint('out')\nprint('err', file=sys.stderr)",
    "nothing": "",
    "no newline": "import sys; sys.stdout.write('a')",
    "exception": "def f(x):\n    return 1 / x\n\nf(0)\n",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('no') from e",
    "context": "try:\n    {}['a']\nexcept KeyError:\n    undefined",
    "note": "e = ValueError('x')\ne.add_note('more')\nraise e",
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "recovered": "import traceback\ntry:\n    1/0\nexcept ZeroDivisionError:\n    traceback.print_exc()",
    "syntax": "x = 1\nx = = 2\n",
    "unclosed": "print((1)",
    "tab": "if 1:\n\tx = 1\n        y = 2",
    "form feed": "x = 1\n\x0c\ny = '\u2028'\n1/0",
    "line ends": "x = 1\r\n1/0\r\n",
    "assertion": "assert 1 == 2, 'one is not two'",
    "exit": "import sys; sys.exit()",
    "exit code": "import sys; print('a'); sys.exit(3)",
    "exit negative": "raise SystemExit(-1)",
    "exit large": "raise SystemExit(256 + 7)",
    "exit text": "import sys; sys.exit('bad input')",
    "exit object": "raise SystemExit((1, 2))",
    "exit now": "import os; print('lost'); os._exit(4)",
    "quit": "quit(5)",
    "interrupt": "import atexit; atexit.register(print, 'bye')\nraise KeyboardInterrupt",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "terminated": "import os; os.kill(os.getpid(), 15)",
    "child signal": "import signal; print(signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGINT))",
    "aborted": "import os; os.abort()",
    "input": "input()",
    "stdin": "import sys; print(repr(sys.stdin.read()))",
    "atexit": "import atexit; atexit.register(print, 'bye'); print('hi')",
    "atexit after error": "import atexit; atexit.register(print, 'bye'); 1/0",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()",
    "thread error": "import threading\ndef f():\n    1/0\nt = threading.Thread(target=f)\nt.start()\nt.join()",
    "finaliser": "class A:\n    def __del__(self):\n        print('gone', B)\nB = 5\na = A()",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\n1/0",
    "no stdout": "import sys; sys.stdout = None",
    "fork": "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('twice', bool(pid))",
    "main": "import __main__, sys\nprint(__name__, __main__ is sys.modules['__main__'], 'FOO' in dir(__main__))",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\nprint(A())",
    "pool": "from concurrent.futures import ThreadPoolExecutor as T\nwith T(2) as t: print(list(t.map(abs, [-1, 2])))",
    "processes": "import multiprocessing as m\ndef f(x): return x * x\n"
    "if __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, [1, 2]))",
    "hashes": "print({'b', 'a', 'c', 'd'}, hash('a'))",
    "warning": "import warnings; warnings.warn('careful')",
    "deprecated": "x = 1 is 1",
    "future": "def f(x: undefined): return 1\n",
    "annotations": "from __future__ import annotations\ndef f(x: undefined): return 1\nprint(f(1), f.__annotations__)",
}


@pytest.mark.parametrize("code", SAME_AS_PLAIN.values(), ids=SAME_AS_PLAIN.keys())
async def test_a_program_ends_as_under_a_plain_interpreter(request, run, tmp_path, code):
    if {"landlock", "processes"} <= set(request.node.callspec.id.split("-")):
        pytest.skip("multiprocessing.Pool needs /dev/shm, which this cage does not have")
    script = tmp_path / "program.py"
    script.write_text(code, encoding="utf-8", newline="")
    environment = clean_environment("none", str(tmp_path))
    plain = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, stdin=subprocess.DEVNULL
    )
    result = await run(code)
    assert result.exit_code == plain.returncode
    assert result.stdout == plain.stdout.decode()
    stderr = plain.stderr.decode().replace(f'File "{script}"', 'File "<python>"').replace(f"{script}:", "<python>:")
    assert result.stderr == stderr
    assert result.status == ("ok" if plain.returncode == 0 else "error")
    assert not result.truncated


async def test_output_that_cannot_be_flushed_shows_in_the_exit_code(run):
    assert (await run("import os; print('x'); os.close(1)")).exit_code == 120


async def test_an_indentation_error_names_line_and_reason(run):
    lines = (await run("if True:\nprint(1)")).stderr.splitlines()
    assert lines[:2] == ['  File "<python>", line 2', "    print(1)"]
    assert lines[-1] == "IndentationError: expected an indented block after 'if' statement on line 1"


async def test_source_is_there_for_inspect(run):
    result = await run("import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))")
    assert result.stdout == "def f():\n    return 1\n\n"


async def test_a_nul_in_the_source_is_the_programs_error(run):
    result = await run("x = 1\0")
    assert result.status == "error" and "null bytes" in result.stderr


async def test_nothing_of_the_drivers_environment_is_seen(monkeypatch, run, workspace):
    monkeypatch.setenv("PLANTED_API_KEY", "sk-planted")
    monkeypatch.setenv("PYTHONPATH", "/planted/path")
    result = await run(
        "import os, sys, subprocess\n"
        "print(dict(os.environ), sys.path, sys.argv)\n"
        "print(subprocess.run(['env'], capture_output=True, text=True).stdout)\n"
        "print(open('/proc/self/environ').read())\n"
        "print(sorted(os.environ))\n"
    )
    assert result.status == "ok" and "planted" not in result.stdout.lower()
    seen = set(eval(result.stdout.splitlines()[-1]))
    assert seen - {"JOBLIB_MULTIPROCESSING"} == set(clean_environment("none", ""))


async def test_no_descriptor_of_the_driver_is_inherited(run):
    with Path(os.devnull).open() as file:
        os.set_inheritable(file.fileno(), True)
        result = await run("import os; print(sorted(os.listdir('/proc/self/fd')))")
    assert eval(result.stdout) == ["0", "1", "2", "3"]  # 3 is the listing itself


async def test_installed_packages_can_be_imported_and_the_parents_folder_cannot(run, tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert (await run("import numpy; print(numpy.arange(3).sum())")).stdout == "3\n"
    assert "No module named 'planted'" in (await run("import planted")).stderr


async def test_nothing_of_the_fork_servers_modules_is_importable_by_accident(run):
    for name in ("program", "mappa_core", "mappa_sandbox.isolation.fork_server"):
        result = await run(f"import sys; print({name!r} in sys.modules)")
        assert result.stdout == "False\n"


async def test_programs_share_the_folder_and_nothing_else(run):
    first = await run(
        "import builtins, os, sys\nbuiltins.print = None\nos.environ['X'] = '1'\nx = 1\nopen('f', 'w').write('a')"
    )
    second = await run("import os\nprint(os.environ.get('X'), 'x' in globals(), open('f').read())")
    assert first.status == "ok"
    assert second.stdout == "None False a\n"


async def test_each_result_lists_the_files_its_program_changed_even_if_left_open(run):
    first = await run("f = open('a.txt', 'w')\nf.write('hi')\nopen('b.txt', 'w').close()")
    second = await run(
        "import os\nos.remove('b.txt')\ncycle = []\n"
        "cycle.append((cycle, open('a.txt', 'w')))\ncycle[0][1].write('ho')\n1/0"
    )
    assert [(change.path, change.kind, change.size) for change in first.files] == [
        ("a.txt", "created", 2),
        ("b.txt", "created", 0),
    ]
    assert [(change.path, change.kind) for change in second.files] == [("a.txt", "changed"), ("b.txt", "deleted")]


async def test_a_module_of_the_workspace_is_imported_and_leaves_no_cache(run):
    await run("open('mine.py', 'w').write('def f():\\n    raise ValueError(1)\\n')")
    result = await run("import mine\nmine.f()")
    assert result.stderr == (
        "Traceback (most recent call last):\n"
        '  File "<python>", line 2, in <module>\n'
        "    mine.f()\n"
        '  File "./mine.py", line 2, in f\n'
        "    raise ValueError(1)\n"
        "ValueError: 1\n"
    )
    assert result.files == ()


async def test_output_does_not_depend_on_where_the_workspace_lies(tool, tmp_path):
    code = "import os\nprint(os.getcwd(), os.path.abspath('x'), object(), map(abs, []))\nos.open('/missing', 0)"
    results = [await tool.call({"code": code}, FolderWorkspace(tmp_path / name), ToolLimits()) for name in "ab"]
    assert results[0].stdout == ". ./x <object object at 0x0> <map object at 0x0>\n"
    assert (results[0].stdout, results[0].stderr) == (results[1].stdout, results[1].stderr)
    assert str(tmp_path) not in results[0].stderr


async def test_bytes_that_are_not_utf8_are_replaced(run):
    result = await run(
        "import sys; sys.stdout.buffer.write(b'a\\xff\\xfeb\\xe2\\x82'); sys.stderr.buffer.write(b'\\xff')"
    )
    assert (result.status, result.stdout, result.stderr) == ("ok", "a\ufffd\ufffdb\ufffd", "\ufffd")


async def test_concurrent_programs_do_not_mix(tool, tmp_path):
    async def one(number: int) -> str:
        workspace = FolderWorkspace(tmp_path / f"w{number}")
        code = f"import time\nfor _ in range(20):\n    print({number}, flush=True)\n    time.sleep(0.001)\n"
        code += f"open('n', 'w').write('{number}')"
        result = await tool.call({"code": code}, workspace, ToolLimits())
        assert (workspace.path / "n").read_text() == str(number)
        return result.stdout

    outputs = await asyncio.gather(*(one(number) for number in range(24)))
    assert outputs == [f"{number}\n" * 20 for number in range(24)]


async def test_at_most_workers_programs_run_at_once_in_order(tmp_path):
    tool = PythonTool(PythonOptions(workers=1))
    workspace = FolderWorkspace(tmp_path / "w")
    code = (
        "import os, time\nassert not os.path.exists('busy')\nopen('busy', 'w').close()\ntime.sleep(0.02)\n"
        "os.remove('busy')\nopen('order', 'a').write('{} ')"
    )
    calls = (tool.call({"code": code.format(number)}, workspace, ToolLimits()) for number in range(5))
    results = await asyncio.gather(*calls)
    await tool.close()
    assert [result.status for result in results] == ["ok"] * 5
    assert (workspace.path / "order").read_text() == "0 1 2 3 4 "


async def test_the_event_loop_goes_on_while_a_program_runs(run):
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await run("import time; time.sleep(0.3)")
    ticking.cancel()
    assert ticks > 5


async def test_a_workspace_that_is_gone_is_a_fault_of_the_machinery(run, workspace):
    workspace.path.rmdir()
    with pytest.raises(ToolError, match=r"cannot run the program: .*No such file"):
        await run("print(1)")
