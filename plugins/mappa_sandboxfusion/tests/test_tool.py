"""Programs on a server do what they do here. Where MAPPA_SANDBOXFUSION_URL names a real server, it has to pass too."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappa_core import ConfigError, ToolResult
from mappa_core.sandbox import FileChange, FolderWorkspace
from mappa_sandboxfusion.tool import SandboxFusionTool

Build = Callable[..., Awaitable[SandboxFusionTool]]
Run = Callable[..., Awaitable[ToolResult]]

FATHERS = """
import os
def father(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
supervisor = os.getppid()
runner = father(supervisor)
around = father(runner)
"""


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def alive(mark: str) -> bool:
    """Whether a process with `mark` in its command line is there."""
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if mark.encode() in command and int(folder.name) != os.getpid():
            return True
    return False


async def test_a_program_prints_and_ends(url: str, build: Build, run: Run) -> None:
    tool = await build(url)
    result = await run(tool, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (result.tool, result.status, result.exit_code) == ("python", "error", 3)
    assert (result.stdout, result.stderr, result.sandbox) == ("out\n", "err\n", "sandboxfusion")


async def test_an_error_shows_the_lines_of_the_program_alone(url: str, build: Build, run: Run) -> None:
    tool = await build(url)
    result = await run(tool, "def f():\n    return 1/0\nf()")
    assert result.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert '  File "<python>", line 3, in <module>\n    f()\n' in result.stderr
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert (await run(tool, "print(")).stderr.endswith("SyntaxError: '(' was never closed\n")


async def test_files_go_there_and_come_back(url: str, build: Build, run: Run, workspace: FolderWorkspace) -> None:
    tool = await build(url)
    blob = bytes(range(256)) * 1000
    (workspace.path / "given.bin").write_bytes(blob)
    (workspace.path / "sub").mkdir()
    (workspace.path / "sub" / "old é.txt").write_text("old")
    workspace.changes()
    code = (
        "import os, pathlib\n"
        "data = open('given.bin', 'rb').read()\n"
        "open('sub/new.bin', 'wb').write(data[::-1])\n"
        "pathlib.Path('sub/old é.txt').write_text('new')\n"
        "os.remove('given.bin')\n"
        "print(sorted(os.listdir()), os.getcwd())"
    )
    result = await run(tool, code)
    assert result.stdout == "['sub'] .\n"
    assert result.files == (
        FileChange(path="given.bin", kind="deleted"),
        FileChange(path="sub/new.bin", kind="created", size=len(blob), sha256=hashlib.sha256(blob[::-1]).hexdigest()),
        FileChange(path="sub/old é.txt", kind="changed", size=3, sha256=hashlib.sha256(b"new").hexdigest()),
    )
    assert tree(workspace.path) == {"sub/new.bin": blob[::-1], "sub/old é.txt": b"new"}


async def test_names_that_the_server_skips_are_of_no_concern(
    url: str, build: Build, run: Run, workspace: FolderWorkspace
) -> None:
    tool = await build(url)
    (workspace.path / "IGNORE_THIS_FILE").write_text("here")
    assert (await run(tool, "print(open('IGNORE_THIS_FILE').read())")).stdout == "here\n"


async def test_only_what_changed_travels(fusion: object, url: str, build: Build, run: Run) -> None:
    if url != fusion.url:  # type: ignore[attr-defined]
        pytest.skip("a real server does not tell what it heard")
    tool = await build(url)
    await run(tool, "open('big', 'wb').write(bytes(1_000_000))")
    heard = fusion.heard  # type: ignore[attr-defined]
    before = len(heard)
    result = await run(tool, "import os; print(os.path.getsize('big')); open('small', 'w').write('x')")
    assert result.stdout == "1000000\n"
    assert len(heard) == before + 1
    assert heard[-1]["files"]["upload.bin"] == ""


async def test_a_file_may_become_a_folder_and_a_folder_a_file(
    url: str, build: Build, run: Run, workspace: FolderWorkspace
) -> None:
    tool = await build(url)
    await run(tool, "import os; open('a', 'w').write('1'); os.makedirs('b/c'); open('b/c/d', 'w').write('2')")
    code = (
        "import os, shutil\n"
        "os.remove('a'); os.makedirs('a/x'); open('a/x/y', 'w').write('3')\n"
        "shutil.rmtree('b'); open('b', 'w').write('4')"
    )
    assert (await run(tool, code)).status == "ok"
    assert tree(workspace.path) == {"a/x/y": b"3", "b": b"4"}
    assert (await run(tool, "print(open('a/x/y').read(), open('b').read())")).stdout == "3 4\n"


ACTS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(["a", "b", "d/a", "d/e/a"]), st.binary(max_size=40)),
    st.tuples(st.just("remove"), st.sampled_from(["a", "b", "d/a", "d/e/a"]), st.just(b"")),
    st.tuples(st.just("clear"), st.sampled_from(["d", "d/e"]), st.just(b"")),
)
ACT = """
import os, shutil
for kind, name, data in {acts!r}:
    if kind == "clear":
        shutil.rmtree(name, ignore_errors=True)
    elif kind == "remove" and os.path.exists(name):
        os.remove(name)
    elif kind == "write":
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "wb").write(data)
"""


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs=st.lists(st.lists(ACTS, max_size=6), min_size=1, max_size=4))
async def test_any_program_leaves_the_same_files_as_on_this_machine(
    url: str, build: Build, run: Run, tmp_path_factory: pytest.TempPathFactory, programs: list[list[object]]
) -> None:
    tool = await build(url)
    here, there = tmp_path_factory.mktemp("here"), FolderWorkspace(tmp_path_factory.mktemp("there"))
    for acts in programs:
        code = ACT.format(acts=acts)
        subprocess.run([sys.executable, "-c", code], cwd=here, check=True)
        result = await run(tool, code, there)
        assert result.status == "ok", result.stderr
        assert tree(there.path) == tree(here)


async def test_files_of_the_task_are_sent_once_and_cannot_be_changed_for_others(
    fusion: object, url: str, build: Build, run: Run, tmp_path: Path
) -> None:
    data = tmp_path / "train.csv"
    data.write_bytes(os.urandom(3 << 20))
    inputs = {"data/train.csv": data}
    first, second = (FolderWorkspace(tmp_path / name, inputs=inputs) for name in ("one", "two"))
    tool = await build(url, chunk_mb=1)
    code = "import hashlib; print(hashlib.sha256(open('data/train.csv', 'rb').read()).hexdigest())"
    expected = hashlib.sha256(data.read_bytes()).hexdigest() + "\n"
    results = await asyncio.gather(run(tool, code, first), run(tool, code, second))
    assert [result.stdout for result in results] == [expected, expected]
    assert all(result.files == () for result in results)
    if url == fusion.url:  # type: ignore[attr-defined]
        sent = sum(len(body["files"].get("upload.bin", "")) for body in fusion.heard)  # type: ignore[attr-defined]
        assert sent < 2 * data.stat().st_size
    replaced = await run(
        tool, "import os; os.remove('data/train.csv'); open('data/train.csv', 'w').write('mine')", first
    )
    assert [change.path for change in replaced.files] == ["data/train.csv"]
    assert (first.path / "data" / "train.csv").read_text() == "mine"
    assert (await run(tool, "print(open('data/train.csv').read())", first)).stdout == "mine\n"
    assert (await run(tool, code, second)).stdout == expected
    await run(tool, "import os; os.remove('data/train.csv')", second)
    assert not (second.path / "data" / "train.csv").is_symlink()
    assert data.stat().st_size == 3 << 20


async def test_irregular_files_are_named_and_not_followed(
    url: str, build: Build, run: Run, workspace: FolderWorkspace
) -> None:
    tool = await build(url)
    code = (
        "import os, socket\n"
        "os.symlink('/etc/passwd', 'submission.csv'); os.symlink('/etc', 'folder'); os.mkfifo('pipe')\n"
        "socket.socket(socket.AF_UNIX).bind('door'); open(b'\\xff', 'w')"
    )
    result = await run(tool, code)
    assert result.status == "ok" and result.files == ()
    assert result.stderr == (
        "[not kept, as these are no regular files: door (socket), folder (symbolic link), pipe (FIFO), "
        "submission.csv (symbolic link), \\xff (its name is not UTF-8)]\n"
    )
    assert list(workspace.path.iterdir()) == []


async def test_a_program_that_removes_its_folder_has_no_files(
    url: str, build: Build, run: Run, workspace: FolderWorkspace
) -> None:
    tool = await build(url)
    await run(tool, "open('x', 'w').write('1')")
    result = await run(tool, "import os; os.remove('x'); os.symlink('/etc', '../aside'); os.rename('../aside', 'etc')")
    assert [(change.path, change.kind) for change in result.files] == [("x", "deleted")]
    assert (await run(tool, "print(1)")).stdout == "1\n"


async def test_large_files_come_in_several_answers(
    url: str, build: Build, run: Run, workspace: FolderWorkspace
) -> None:
    tool = await build(url, chunk_mb=1)
    code = (
        "import os\n"
        "for n in range(5): open(f'{n}', 'wb').write(os.urandom(900_000))\n"
        "open('6', 'wb').write(bytes(3_000_000))"
    )
    result = await run(tool, code)
    assert {change.path: change.size for change in result.files} == {
        **{str(n): 900_000 for n in range(5)},
        "6": 3_000_000,
    }
    again = await run(tool, "print(sum(len(open(n, 'rb').read()) for n in '012346'))", FolderWorkspace(workspace.path))
    assert again.stdout == "7500000\n"


@pytest.mark.parametrize(
    ("code", "limits", "status", "said"),
    [
        ("import time; time.sleep(100)", {"wall_s": 1.0}, "timeout", "more than 1 s of wall time"),
        ("while True: pass", {"cpu_s": 1.0}, "timeout", "more than 1 s of CPU time"),
        ("x = bytearray(1 << 30)", {"memory_bytes": 256 << 20}, "error", "MemoryError"),
        ("open('x', 'wb').write(bytes(10 << 20))", {"file_bytes": 1 << 20}, "error", "File too large"),
        ("import os; os.kill(os.getpid(), 9)", {}, "error", ""),
    ],
)
async def test_limits_are_those_of_the_call(
    url: str, build: Build, run: Run, code: str, limits: dict[str, float], status: str, said: str
) -> None:
    result = await run(await build(url), code, **limits)
    assert result.status == status and said in result.stderr


async def test_too_many_bytes_are_not_fetched(url: str, build: Build, run: Run, workspace: FolderWorkspace) -> None:
    tool = await build(url)
    code = "for n in range(8): open(f'{n}', 'wb').write(bytes(1 << 20))"
    result = await run(tool, code, workspace_bytes=5 << 20)
    assert result.status == "error"
    assert sum(path.stat().st_size for path in workspace.path.iterdir()) <= 5 << 20
    assert (await run(tool, "print('on')", workspace_bytes=5 << 20)).stdout == "on\n"


async def test_output_is_kept_from_both_ends_however_much_there_is(url: str, build: Build, run: Run) -> None:
    tool = await build(url)
    result = await run(tool, "print('first'); print('x' * 5_000_000); print('last')", output_bytes=3000)
    assert result.status == "ok" and result.truncated
    assert result.stdout.startswith("first\n") and result.stdout.endswith("last\n") and len(result.stdout) < 3200


async def test_output_that_is_no_utf8_is_shown(url: str, build: Build, run: Run) -> None:
    result = await run(await build(url), "import sys; sys.stdout.buffer.write(b'\\xff ok')")
    assert result.stdout == "\ufffd ok"


async def test_nothing_is_left_running(url: str, build: Build, run: Run) -> None:
    tool = await build(url)
    code = (
        "import subprocess, sys\n"
        "for new in (False, True):\n"
        "    program = [sys.executable, '-c', 'import time; time.sleep(300)', 'left-of-fusion']\n"
        "    subprocess.Popen(program, start_new_session=new)\n"
        "print('done')"
    )
    assert (await run(tool, code)).stdout == "done\n"
    assert not alive("left-of-fusion")


@pytest.mark.parametrize("doomed", ["supervisor", "supervisor, runner"])
async def test_a_program_that_kills_what_watches_it_is_at_fault_itself(
    url: str, build: Build, run: Run, workspace: FolderWorkspace, doomed: str
) -> None:
    tool = await build(url)
    code = f"{FATHERS}\nopen('x', 'w').write('1')\nfor pid in [{doomed}]: os.kill(pid, 9)\nimport time\ntime.sleep(300)"
    result = await run(tool, code)
    assert (result.status, result.exit_code) == ("error", None)
    assert "killed or stopped the process that watches it" in result.stderr
    assert (await run(tool, "print('on')")).stdout == "on\n"


async def test_a_program_that_kills_all_around_it_loses_its_files(
    url: str, build: Build, run: Run, workspace: FolderWorkspace
) -> None:
    tool = await build(url)
    await run(tool, "open('kept', 'w').write('1')")
    result = await run(
        tool, f"{FATHERS}\nopen('lost', 'w').write('1')\nfor pid in [around, runner, supervisor]: os.kill(pid, 9)"
    )
    assert "killed or stopped the process that watches it" in result.stderr and result.files == ()
    assert (await run(tool, "import os; print(os.listdir())")).stdout == "['kept']\n"


async def test_a_program_that_stops_its_supervisor_is_at_fault_itself(url: str, build: Build, run: Run) -> None:
    tool = await build(url, margin_s=5.0)
    result = await run(
        tool, f"{FATHERS}\nimport signal, time\nos.kill(supervisor, signal.SIGSTOP)\ntime.sleep(300)", wall_s=1.0
    )
    assert "killed or stopped the process that watches it" in result.stderr


async def test_threads_start_under_the_memory_limit_of_the_server(url: str, build: Build, run: Run) -> None:
    tool = await build(url, memory_limit=True)
    code = "import threading\nt = threading.Thread(target=print, args=('in thread',)); t.start(); t.join()"
    assert (await run(tool, code)).stdout == "in thread\n"


async def test_the_environment_is_that_of_the_tool_python(
    build: Build, run: Run, fusion: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mappa_sandbox.environment import clean_environment

    monkeypatch.setenv("PLANTED_API_KEY", "planted-here")
    fusion.environment = {"SERVER_TOKEN": "planted-there"}  # type: ignore[attr-defined]
    tool = await build(fusion.url)  # type: ignore[attr-defined]
    result = await run(tool, "import os; print(sorted(os.environ)); print(os.environ)")
    assert "planted" not in result.stdout
    assert result.stdout.splitlines()[0] == str(sorted(clean_environment("none", "/")))


async def test_programs_of_many_trajectories_run_at_once(url: str, build: Build, run: Run, tmp_path: Path) -> None:
    tool = await build(url, concurrency=3)

    async def one(number: int) -> None:
        folder = FolderWorkspace(tmp_path / f"{number}")
        for turn in range(2):
            result = await run(tool, f"open('x', 'a').write('{number}'); print(open('x').read())", folder)
            assert result.stdout == f"{number}" * (turn + 1) + "\n"

    await asyncio.gather(*(one(number) for number in range(6)))


async def test_programs_of_one_folder_wait_for_each_other(
    url: str, build: Build, run: Run, workspace: FolderWorkspace
) -> None:
    tool = await build(url)
    await asyncio.gather(*(run(tool, "open('x', 'a').write('.')") for _ in range(4)))
    assert (workspace.path / "x").read_text() == "...."


async def test_arguments_and_a_second_opening(url: str, build: Build, workspace: FolderWorkspace) -> None:
    from mappa_core import ToolLimits

    tool = await build(url)
    assert await tool.open() == await tool.open()
    result = await tool.run("import sys; print(sys.argv[1:])", ["a", "b c"], workspace, ToolLimits())
    assert result.stdout == "['a', 'b c']\n"


async def test_nothing_stays_on_the_server(build: Build, run: Run, fusion: object) -> None:
    tool = await build(fusion.url)  # type: ignore[attr-defined]
    await run(tool, "open('x', 'w').write('1')")
    temp: Path = fusion.temp  # type: ignore[attr-defined]
    assert [path.name[:13] for path in temp.iterdir()] == ["mappa-fusion-"]
    await tool.close()
    await tool.close()
    assert list(temp.iterdir()) == []


async def test_copies_of_folders_that_are_gone_are_removed(
    build: Build, run: Run, fusion: object, tmp_path: Path
) -> None:
    tool = await build(fusion.url)  # type: ignore[attr-defined]
    for number in range(4):
        folder = FolderWorkspace(tmp_path / f"{number}")
        await run(tool, "open('x', 'w').write('1')", folder)
        (folder.path / "x").unlink()
        folder.path.rmdir()
    (root,) = fusion.temp.iterdir()  # type: ignore[attr-defined]
    assert len([path for path in root.iterdir() if path.name != "inputs"]) == 1


async def test_no_server_is_a_mistake_that_says_what_to_do(fusion: object, build: Build) -> None:
    fusion.programs_work = False  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no SandboxFusion server can run programs") as refused:
        await build(fusion.url, "http://127.0.0.1:1")  # type: ignore[attr-defined]
    for words in ("no Python here", "the connection failed", "docs/sandboxfusion.md", "tools.python.use=python"):
        assert words in str(refused.value)
