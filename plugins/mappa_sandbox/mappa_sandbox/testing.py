"""A contract for tools that run Python programs, in any sandbox. Needs pytest and pytest-asyncio in auto mode."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mappa.testing import ToolContract
from mappa_core import Tool, ToolLimits, ToolResult
from mappa_core.sandbox import FileChange, FolderWorkspace

MB = 1 << 20
PLANTED_SECRET = "planted-7f3a91-secret"

PROGRAM_ENDINGS: Mapping[str, tuple[str, int | None, str, str]] = {
    "print(1)": ("ok", 0, "1\n", ""),
    "": ("ok", 0, "", ""),
    "import sys; sys.exit()": ("ok", 0, "", ""),
    "import sys; print('a'); sys.exit(3)": ("error", 3, "a\n", ""),
    "import sys; sys.exit('bad input')": ("error", 1, "", "bad input"),
    "import os; print('a', flush=True); os._exit(4)": ("error", 4, "a\n", ""),
    "import os; os.kill(os.getpid(), 9)": ("error", -9, "", ""),
    "x = 1\n\nx / 0": ("error", 1, "", "ZeroDivisionError: division by zero"),
    "x = 1\nx = = 2": ("error", 1, "", "SyntaxError: invalid syntax"),
    "if True:\nprint(1)": ("error", 1, "", "IndentationError: "),
    "input()": ("error", 1, "", "EOFError: EOF when reading a line"),
    "import sys; print(repr(sys.stdin.read()))": ("ok", 0, "''\n", ""),
    "import nowhere": ("error", 1, "", "ModuleNotFoundError: No module named 'nowhere'"),
    "raise KeyboardInterrupt": ("error", -2, "", "KeyboardInterrupt"),
    "print('\\u20ac \\U0001f40d')": ("ok", 0, "€ 🐍\n", ""),
    "import sys; sys.stdout.buffer.write(b'a\\xff')": ("ok", 0, "a\ufffd", ""),
}
"""Program -> status, exit code, standard output, start of the last line of standard error."""
ERROR_LINES = {
    "x = 1\n\nx / 0": 3,
    "x = 1\nx = = 2": 2,
    "def f():\n    raise ValueError\n\nf()": 2,
    "if True:\nprint(1)": 2,
}
FILE_NAMES = (
    "plain.txt",
    "with space.csv",
    "ünïcode-€.txt",
    "a/b/c.txt",
    "-dash",
    "quote'\".txt",
    "UPPER.TXT",
    ".hidden",
)
BACKGROUND_PROGRAM = """
import subprocess, sys, time
beat = "import time\\nwhile True:\\n    open('beat', 'a').write('x')\\n    time.sleep(0.02)"
subprocess.Popen([sys.executable, "-c", beat], start_new_session=True)
while not __import__("os").path.exists("beat"):
    time.sleep(0.02)
print("main")
"""


class ProgramRunner:
    """Runs programs with one tool in one workspace."""

    def __init__(self, tool: Tool, workspace: FolderWorkspace, limits: ToolLimits) -> None:
        self.tool = tool
        self.workspace = workspace
        self.limits = limits

    async def __call__(self, code: str, **limits: Any) -> ToolResult:
        return await self.tool.call({"code": code}, self.workspace, replace(self.limits, **limits))


class ExecutorContract(ToolContract):
    """Contract for the tool `python`, whatever sandbox it uses. Subclass it and implement `tool`."""

    arguments: Mapping[str, Any] = {"code": "print(6 * 7)"}
    nonsense: Sequence[Mapping[str, Any]] = ({"code": "1 +"}, {"code": "x = 1\0"}, {"code": "'\ud800"})

    @pytest.fixture
    def run(self, opened: Tool, workspace: FolderWorkspace) -> ProgramRunner:
        return ProgramRunner(opened, workspace, self.limits)

    @pytest.mark.parametrize("code", PROGRAM_ENDINGS)
    async def test_a_program_ends_as_under_an_interpreter(self, run: ProgramRunner, code: str) -> None:
        """Status, exit code and streams are those of an interpreter. See `PROGRAM_ENDINGS` for the program and the
        expected result."""
        status, exit_code, stdout, last = PROGRAM_ENDINGS[code]
        result = await run(code)
        assert (result.status, result.exit_code, result.stdout) == (status, exit_code, stdout), result
        assert (result.stderr.splitlines() or [""])[-1].startswith(last), result.stderr
        assert result.stderr or not last
        assert result.sandbox, "the result says where the program ran"
        assert not result.truncated

    @pytest.mark.parametrize("code", ERROR_LINES)
    async def test_an_error_names_its_line(self, run: ProgramRunner, code: str) -> None:
        """A traceback numbers lines as the agent wrote them. Subtract the lines that you put before the program."""
        result = await run(code)
        assert result.exit_code == 1
        assert f"line {ERROR_LINES[code]}" in result.stderr, result.stderr

    async def test_the_streams_are_kept_apart(self, run: ProgramRunner) -> None:
        """Standard output and standard error are returned separately. Read two pipes."""
        result = await run("import sys\nprint('out')\nprint('err', file=sys.stderr)")
        assert (result.stdout, result.stderr) == ("out\n", "err\n")

    async def test_output_is_cut_in_the_middle(self, run: ProgramRunner) -> None:
        """Of output beyond `output_bytes` the beginning and the end are kept, with a note of what is missing: see
        `cut_middle`."""
        result = await run("print('first')\nprint('x' * 100_000)\nprint('last')", output_bytes=3000)
        assert (result.status, result.truncated) == ("ok", True)
        assert result.stdout.startswith("first\n")
        assert result.stdout.endswith("last\n")
        assert len(result.stdout) < 3200
        assert "cut" in result.stdout, "the output does not say what is missing"

    async def test_output_up_to_the_limit_is_whole(self, run: ProgramRunner) -> None:
        """Output within the limit is complete. Compare with the limit before you truncate."""
        result = await run("print('x' * 499_999)", output_bytes=500_000)
        assert (result.stdout == "x" * 499_999 + "\n", result.truncated) == (True, False)

    async def test_a_flood_on_both_streams_does_not_stall(self, run: ProgramRunner) -> None:
        """A program that writes more than is kept still ends. Read both pipes to their end, and drop the excess."""
        flood = "def flood(f):\n    for _ in range(50): f.write('y' * 100_000)\n"
        result = await run(f"import sys\n{flood}flood(sys.stdout)\nflood(sys.stderr)\nprint('end')")
        assert (result.status, result.truncated) == ("ok", True)
        assert result.stdout.endswith("end\n")

    async def test_many_short_lines_do_not_stall(self, run: ProgramRunner) -> None:
        """Many small writes arrive complete. Read until the end of the stream, not line by line."""
        result = await run("for number in range(20_000): print(number, flush=True)", output_bytes=MB)
        assert result.stdout.splitlines() == [str(number) for number in range(20_000)]

    async def test_wall_time_is_limited_and_output_is_kept(self, run: ProgramRunner) -> None:
        """At `wall_s` the program is killed: status `timeout`, output so far is kept, and the last line names the
        limit."""
        result = await run(
            "import time\nprint('on', flush=True)\nopen('f', 'w').write('1')\ntime.sleep(600)", wall_s=2.0
        )
        assert (result.status, result.exit_code, result.stdout) == ("timeout", None, "on\n")
        assert "2 s of wall time" in result.stderr.splitlines()[-1]
        assert [change.path for change in result.files] == ["f"]

    async def test_cpu_time_is_limited(self, run: ProgramRunner) -> None:
        """At `cpu_s` of CPU time, including its children, the program is killed."""
        result = await run("while True: pass", cpu_s=1.0)
        assert (result.status, result.exit_code) == ("timeout", None)
        assert "1 s of CPU time" in result.stderr.splitlines()[-1]

    @pytest.mark.parametrize("code", ["x = bytearray(3 << 30)", "x = []\nwhile True: x.append(bytearray(1 << 20))"])
    async def test_memory_is_limited(self, run: ProgramRunner, code: str) -> None:
        """A program that allocates more than `memory_bytes` fails or is killed. Limit its address space or its
        cgroup."""
        result = await run(code, memory_bytes=256 * MB)
        assert result.status == "error", result
        assert "MemoryError" in result.stderr or result.exit_code is None

    async def test_a_file_cannot_grow_over_its_limit(self, run: ProgramRunner) -> None:
        """No file is larger than `file_bytes`. Limit the file size in the program's process."""
        result = await run("open('big', 'wb').write(bytes(4 << 20))", file_bytes=MB)
        assert result.status == "error"
        assert all(change.size is not None and change.size <= MB for change in result.files)

    async def test_threads_and_children_work(self, run: ProgramRunner) -> None:
        """Threads and processes within the limit work, and the output of children is captured."""
        result = await run(
            "import subprocess, sys, threading\nthread = threading.Thread(target=print, args=('thread',))\n"
            "thread.start(); thread.join()\nsys.stdout.flush()\n"
            "subprocess.run([sys.executable, '-c', 'print(\"child\")'])"
        )
        assert result.stdout == "thread\nchild\n", result

    async def test_files_are_kept_and_their_changes_reported(self, run: ProgramRunner) -> None:
        """Created, changed and deleted files are reported, and the next program sees the changes."""
        first = await run("open('a.txt', 'w').write('a')\nopen('b.txt', 'w').write('b')")
        second = await run("import os\nprint(open('a.txt').read())\nopen('a.txt', 'a').write('!')\nos.remove('b.txt')")
        third = await run("print(sorted(__import__('os').listdir()))")
        assert first.files == (_created("a.txt", b"a"), _created("b.txt", b"b"))
        assert second.stdout == "a\n"
        changed = replace(_created("a.txt", b"a!"), kind="changed")
        assert second.files == (changed, FileChange(path="b.txt", kind="deleted"))
        assert (third.stdout, third.files) == ("['a.txt']\n", ())
        assert run.workspace.files == ("a.txt",)

    async def test_files_of_a_program_that_fails_are_kept_too(self, run: ProgramRunner) -> None:
        """Files are kept however the program ends: report changes in every case."""
        result = await run("f = open('partial.txt', 'w')\nf.write('half')\n1 / 0")
        assert result.files == (_created("partial.txt", b"half"),)

    async def test_bytes_come_back_as_they_were(self, run: ProgramRunner) -> None:
        """Files are bytes. Transfer and store them unchanged."""
        content = bytes(range(256)) * 4
        first = await run("open('data.bin', 'wb').write(bytes(range(256)) * 4)")
        second = await run("print(open('data.bin', 'rb').read() == bytes(range(256)) * 4)")
        assert first.files == (_created("data.bin", content),)
        assert second.stdout == "True\n"
        assert (run.workspace.path / "data.bin").read_bytes() == content

    @pytest.mark.parametrize("name", FILE_NAMES)
    async def test_a_file_may_have_any_name(self, run: ProgramRunner, name: str) -> None:
        """Names may contain spaces, dashes, quotes, folders and any letter. Pass them as data, never through a
        shell."""
        code = f"from pathlib import Path\npath = Path({name!r})\npath.parent.mkdir(parents=True, exist_ok=True)\n"
        first = await run(code + "path.write_text('x')")
        second = await run(code + "print(path.read_text())")
        assert first.files == (_created(name, b"x"),), first
        assert (second.stdout, second.files) == ("x\n", ())

    async def test_touching_makes_a_file(self, run: ProgramRunner) -> None:
        """File times can be set. Allow the system calls of `utime`."""
        result = await run("from pathlib import Path\nPath('new').touch()\nPath('new').touch()")
        assert result.files == (_created("new", b""),), result

    async def test_files_can_be_copied_with_their_times(self, run: ProgramRunner) -> None:
        """`shutil.copy2` and `copytree` work. Allow the system calls that they use."""
        result = await run(
            "import shutil\nopen('a', 'w').write('x')\nshutil.copy2('a', 'b')\nshutil.copytree('.', 'c')"
        )
        assert result.status == "ok", result.stderr

    async def test_a_file_of_the_host_is_seen(self, run: ProgramRunner) -> None:
        """Files that are in the workspace before the call are visible to the program, which may modify them."""
        (run.workspace.path / "given.txt").write_text("given")
        run.workspace.changes()
        result = await run("print(open('given.txt').read())\nopen('given.txt', 'a').write('!')")
        assert (result.stdout, [change.kind for change in result.files]) == ("given\n", ["changed"]), result

    async def test_input_files_can_be_read_and_not_written(self, opened: Tool, tmp_path: Path) -> None:
        """Files of the task can be read but not written: bind them read-only, or provide copies."""
        original = tmp_path / "train.csv"
        original.write_text("a,b\n1,2\n")
        workspace = FolderWorkspace(tmp_path / "work", tmp_path / "archive", inputs={"train.csv": original})
        run = ProgramRunner(opened, workspace, self.limits)
        assert (await run("print(open('train.csv').read())")).stdout == "a,b\n1,2\n\n"
        for code in ("open('train.csv', 'a').write('x')", "import os; os.truncate('train.csv', 0)"):
            result = await run(code)
            assert result.status == "error", "a program wrote to a file of its task"
            assert original.read_text() == "a,b\n1,2\n"

    async def test_variables_are_not_kept(self, run: ProgramRunner) -> None:
        """Every program starts with a clean state; only files persist. Use a new interpreter, or a fork."""
        await run("x = 1\nimport builtins\nbuiltins.y = 1")
        assert (await run("import builtins\nprint('x' in globals(), hasattr(builtins, 'y'))")).stdout == "False False\n"

    async def test_nothing_of_the_environment_is_seen(
        self, run: ProgramRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No API key is in the environment of a program or of its children. Build the environment from scratch."""
        monkeypatch.setenv("PLANTED_API_KEY", PLANTED_SECRET)
        result = await run(
            "import os, subprocess\nprint(dict(os.environ))\n"
            "print(subprocess.run(['env'], capture_output=True, text=True).stdout)"
        )
        assert result.status == "ok", result
        assert PLANTED_SECRET not in result.stdout

    async def test_children_are_not_waited_for_and_end(self, run: ProgramRunner) -> None:
        """A call returns when the program ends, and its child processes are killed."""
        result = await run(BACKGROUND_PROGRAM)
        assert (result.status, result.stdout) == ("ok", "main\n"), result
        size = "os.path.getsize('beat')"
        look = f"import os, time\nbefore = {size}\ntime.sleep(0.5)\nprint({size} - before)"
        assert (await run(look)).stdout == "0\n", "a child goes on after its program"

    async def test_children_that_hold_the_output_are_not_waited_for(self, run: ProgramRunner) -> None:
        """A child that keeps the pipes open does not delay the result."""
        result = await run("import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint('main')")
        assert (result.status, result.stdout) == ("ok", "main\n"), result

    async def test_eight_concurrent_programs_do_not_mix(self, opened: Tool, tmp_path: Path) -> None:
        """Concurrent programs have separate outputs and workspaces."""

        async def write_number(number: int) -> tuple[str, str]:
            workspace = FolderWorkspace(tmp_path / f"w{number}")
            code = f"import time\nfor _ in range(10):\n    print({number}, flush=True)\n    time.sleep(0.01)\n"
            result = await opened.call({"code": code + f"open('n', 'w').write('{number}')"}, workspace, self.limits)
            return result.stdout, (workspace.path / "n").read_text()

        results = await asyncio.gather(*(write_number(number) for number in range(8)))
        assert results == [(f"{number}\n" * 10, str(number)) for number in range(8)]

    async def test_modules_of_the_workspace_can_be_imported(self, run: ProgramRunner) -> None:
        """A module that an agent wrote can be imported, and the import creates no files: set
        `sys.dont_write_bytecode`."""
        await run("open('mine.py', 'w').write('def f():\\n    raise ValueError(1)\\n')")
        result = await run("import mine\nmine.f()")
        assert "mine.py" in result.stderr and result.stderr.endswith("ValueError: 1\n"), result
        assert result.files == (), "an import leaves files of its own"

    async def test_links_and_devices_are_reported_and_not_followed(self, run: ProgramRunner) -> None:
        """Links, pipes and devices are reported in `stderr`, not kept and never followed."""
        result = await run(
            "import os\nos.symlink('/etc/passwd', 'link.csv')\nos.mkfifo('pipe')\nopen('f', 'w').close()"
        )
        assert [change.path for change in result.files] == ["f"]
        assert "link.csv (symbolic link)" in result.stderr, "what was left behind is not reported"
        assert (await run("print('on')")).stdout == "on\n"

    async def test_output_does_not_depend_on_the_place_of_the_workspace(self, opened: Tool, tmp_path: Path) -> None:
        """A program sees the workspace as `.`: a replay runs in another folder and must give the same output."""
        code = "import os\nprint(os.getcwd(), os.path.abspath('x'))\nos.open('/missing', 0)"
        results = [await opened.call({"code": code}, FolderWorkspace(tmp_path / n), self.limits) for n in ("a", "b")]
        assert _timeless(results[0]) == _timeless(results[1])
        assert results[0].stdout == ". ./x\n", results[0]


def _created(path: str, content: bytes) -> FileChange:
    return FileChange(path=path, kind="created", size=len(content), sha256=hashlib.sha256(content).hexdigest())


def _timeless(result: ToolResult) -> ToolResult:
    return replace(result, seconds=0.0)
