"""Hostile programs, in every tier: nothing escapes, nothing survives, no planted key is seen, and the parent goes on.

Each attack is a program of its own in `attacks/`, which tells what it managed. `Arena.attack` runs it beside an
innocent neighbour and looks around afterwards. As root, all of it runs a second time as an ordinary user.
"""

from __future__ import annotations

import asyncio
import os
import random
import sysconfig
from pathlib import Path

import pytest

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace

MB = 1 << 20
REACHES_ITS_END = (
    "read_secrets",
    "proc_tricks",
    "other_processes",
    "helpers",
    "descriptors",
    "write_outside",
    "metadata_outside",
    "inputs",
    "network",
    "escalate",
    "foreign_calls",
    "left_behind",
    "memory_scan",
    "background",
    "mayflies",
    "output_flood",
)
"""Attacks that are refused what they try and go on to their end."""
MEMORY_WAYS = (
    *("memfd", "/dev/shm", "nameless in /dev/shm", "home", "nameless at home", "unlinked at home", "/tmp", "/dev"),
    *("/run", "pipes", "System V"),
)
DISK_WAYS = ("named", "nameless", "unlinked", "home", "closed", "allocated", "crowd", "folders", "links")


@pytest.mark.parametrize("name", REACHES_ITS_END)
async def test_an_attack_is_refused(arena, name):
    result = await arena.attack(name)
    assert (result.status, result.stdout.splitlines()[-1:]) == ("ok", ["done"]), result
    assert result.sandbox is not None


@pytest.mark.parametrize("name", ["fork_bomb", "thread_bomb", "memory_bomb", "memory_crowd", "buffers"])
async def test_a_bomb_is_stopped_at_a_limit(arena, name):
    result = await arena.attack(name, wall_s=60.0)
    assert result.status == "error" or result.stdout.endswith("done\n"), result


@pytest.mark.parametrize("way", MEMORY_WAYS)
async def test_memory_that_is_in_no_process_is_limited_too(arena, way):
    result = await arena.attack("memory_elsewhere", {"way": way}, file_bytes=200 * MB)
    assert result.status == "error" or result.stdout.endswith("done\n"), result


@pytest.mark.slow
@pytest.mark.parametrize("way", DISK_WAYS)
async def test_the_disk_is_not_filled(arena, way):
    result = await arena.attack("disk_bomb", {"way": way})
    assert result.status == "error" or result.stdout.endswith("done\n"), result
    size = sum(path.lstat().st_size for path in arena.workspaces[0].path.rglob("*"))
    assert size < 200 * MB


async def test_files_that_take_no_room_are_not_read_for_ever(arena):
    result = await arena.attack("sparse_files")
    assert result.status == "error", result
    assert sum(path.lstat().st_size for path in (arena.bait.root / "archive").rglob("*")) < 200 * MB


@pytest.mark.slow
async def test_many_processes_share_one_limit_of_cpu_time(arena):
    result = await arena.attack("cpu_crowd", cpu_s=3.0)
    assert (result.status, result.exit_code) == ("timeout", None)
    assert "CPU time" in result.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stops", "stubborn"])
async def test_a_program_that_refuses_to_end_is_killed(arena, name):
    result = await arena.attack(name, wall_s=3.0)
    assert (result.status, result.exit_code, result.stdout) == ("timeout", None, "done\n")


async def test_a_runner_that_is_taken_apart_ends_nobody_else(arena):
    result = await arena.attack("broken_runner", wall_s=3.0)
    assert result.stdout.startswith("done\n")


async def test_signals_reach_nobody_else(arena):
    result = await arena.attack("signals")
    assert result.status in ("ok", "error"), result
    assert "done" in result.stdout or result.exit_code is not None


async def test_a_result_cannot_be_forged(arena):
    result = await arena.attack("forged_result")
    assert (result.status, result.exit_code) == ("error", 7)
    assert result.stdout.count('"limit": null') == 2, "what it wrote is output and nothing else"


async def test_output_has_its_limit(arena):
    result = await arena.attack("output_flood", output_bytes=10_000)
    assert result.truncated
    assert max(len(result.stdout), len(result.stderr)) < 11_000


async def test_links_and_devices_are_reported_and_not_followed(arena):
    result = await arena.attack("links")
    assert (result.status, result.stdout) == ("ok", "done\n"), result
    assert [change.path for change in result.files] == ["honest.csv"]
    for name in ("submission.csv", "passwd.csv", "data", "root", "loop", "self", "pipe.csv", "folder/inner.csv"):
        assert name not in arena.workspaces[0].files
    assert "data (symbolic link)" in result.stderr, "what was left behind is not reported"


async def test_a_replaced_input_is_a_file_of_the_agent(arena):
    result = await arena.attack("inputs")
    assert [(change.path, change.size) for change in result.files] == [("train.csv", 6), ("writable.csv", 6)]


async def test_a_workspace_that_is_destroyed_can_still_be_used(arena):
    result = await arena.attack("workspace_gone")
    assert result.stdout == "done\n"
    workspace = arena.workspaces[0]
    again = await arena.tool.call({"code": "open('new.txt', 'w').write('x')"}, workspace, ToolLimits())
    assert again.status == "ok", again
    assert "new.txt" in workspace.files


async def test_odd_names_and_endless_folders_harm_nobody(arena):
    result = await arena.attack("odd_names")
    assert result.status == "error" or result.stdout.endswith("done\n"), result
    assert "a\nb" in [change.path for change in result.files]


async def test_two_programs_at_once_and_one_after_them_do_not_meet(arena):
    pair = [arena.workspace(name, rounds=10) for name in ("one", "two")]
    results = await asyncio.gather(*(arena.run("meet", workspace) for workspace in pair))
    results += [await arena.run("meet", arena.workspace("three", rounds=1))]
    results += [await arena.run("meet", pair[0])]
    assert [(result.status, result.stdout) for result in results] == [("ok", "done\n")] * 4, results
    arena.assert_nothing_escaped()


@pytest.mark.slow
@pytest.mark.parametrize("preload", [[], ["numpy", "json", "random"]], ids=["bare", "preloaded"])
async def test_no_state_goes_from_one_program_to_another(bait, nothing_left, open_tool, make_arena, preload):
    arena = make_arena(await open_tool(workers=4, preload=preload))
    workspace = arena.workspace("x")
    clean = await arena.run("fingerprint", workspace)
    assert clean.status == "ok", clean
    poisoner = asyncio.create_task(arena.run("poison", arena.workspace("poisoner", seconds=3)))
    beside = await arena.run("fingerprint", workspace)
    assert (await poisoner).stdout == "done\n", await poisoner
    after = await arena.run("fingerprint", workspace)
    assert beside.stdout == clean.stdout
    assert after.stdout == clean.stdout
    arena.assert_nothing_escaped()


async def test_the_same_folder_carries_files_and_nothing_else(arena):
    """Whoever runs next in the same workspace finds its files, but no process, no home and no environment."""
    workspace = arena.workspace("same")
    leave = "import os, subprocess\nopen(os.environ['HOME'] + '/left', 'w').close()\nopen('kept', 'w').close()\n"
    leave += "subprocess.Popen(['sleep', '1000'])\nos.environ['LEFT'] = '1'"
    look = "import os\nprint('left' in os.listdir(os.environ['HOME']), 'LEFT' in os.environ, os.path.exists('kept'))"
    first = await arena.tool.call({"code": leave}, workspace, ToolLimits())
    assert first.status == "ok", first
    second = await arena.tool.call({"code": look}, workspace, ToolLimits())
    assert second.stdout == "False False True\n"


async def test_programs_draw_different_random_numbers(open_tool, bait):
    tool = await open_tool(preload=["random", "numpy", "uuid", "secrets", "tempfile"])
    code = (
        "import os, random, secrets, tempfile, uuid\nimport numpy\n"
        "print(random.random(), random.getrandbits(64))\nprint(numpy.random.rand(), numpy.random.randint(1 << 60))\n"
        "print(numpy.random.default_rng().random())\nprint(uuid.uuid4())\nprint(secrets.token_hex(8))\n"
        "print(os.urandom(8).hex())\nprint(next(tempfile._get_candidate_names()))"
    )
    workspace = FolderWorkspace(bait.root / "work" / "numbers")
    results = [await tool.call({"code": code}, workspace, ToolLimits()) for _ in range(3)]
    assert [result.status for result in results] == ["ok"] * 3, results
    for drawn in zip(*(result.stdout.splitlines() for result in results), strict=True):
        assert len(set(drawn)) == 3, f"the same numbers again: {drawn}"


@pytest.mark.parametrize("preload", [[], ["numpy"]], ids=["bare", "preloaded"])
async def test_what_is_hidden_cannot_be_read(bait, nothing_left, backend, open_tool, make_arena, preload):
    packages = Path(sysconfig.get_paths()["purelib"])
    hidden = ["numpy/testing", "numpy/random/__init__.pxd", str(packages / "packaging" / "tags.py")]
    arena = make_arena(await open_tool(hidden_paths=hidden, preload=preload, workers=4))
    paths = [str(packages / path) for path in hidden]
    assert all(Path(path).exists() for path in paths)
    # Landlock has no rule that forbids: names can be seen there, contents not.
    result = await arena.attack("hidden", {"hidden": paths, "names_show": backend == "landlock"})
    assert (result.status, result.stdout) == ("ok", "6\ndone\n"), result


async def test_what_is_hidden_elsewhere_is_not_needed_to_hide_it(open_tool, bait):
    tool = await open_tool(hidden_paths=[str(bait.home)])
    workspace = FolderWorkspace(bait.root / "work" / "hidden")
    result = await tool.call({"code": f"open({str(bait.home / '.env')!r})"}, workspace, ToolLimits())
    assert result.exit_code == 1 and result.stderr.splitlines()[-1].startswith(("FileNotFoundError", "PermissionError"))


async def test_a_workspace_beside_what_is_hidden_can_be_used(open_tool, bait):
    (bait.root / "work/secret").write_text("hidden")
    workspace = FolderWorkspace(bait.root / "work" / "beside")
    tool = await open_tool(hidden_paths=[str(bait.root / "work/secret")])
    code = "open('a', 'w').write('a')\nprint(open('a').read(), open('given').read())"
    (workspace.path / "given").write_text("given")
    result = await tool.call({"code": code}, workspace, ToolLimits())
    assert (result.status, result.stdout) == ("ok", "a given\n"), result
    secret = await tool.call({"code": f"open({str(bait.root / 'work/secret')!r})"}, workspace, ToolLimits())
    assert secret.exit_code == 1


@pytest.mark.parametrize("seed", range(3))
async def test_attacks_at_once_do_not_help_each_other(arena, seed):
    names = random.Random(seed).sample(("background", "write_outside", "read_secrets", "network", "meet", "poison"), 4)
    told = {"rounds": 3, "seconds": 1}
    results = await asyncio.gather(*(arena.run(name, arena.workspace(name, **told)) for name in names))
    assert [result.stdout.splitlines()[-1:] for result in results] == [["done"]] * 4, results
    arena.assert_nothing_escaped()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the programs of each workspace as a user of its own")
async def test_as_root_each_workspace_has_a_user_of_its_own(arena):
    code = "import os\nprint(*os.getresuid(), *os.getresgid(), os.getgroups())"
    results = [await arena.tool.call({"code": code}, arena.workspace(name), ToolLimits()) for name in ("a", "b")]
    users = [str(workspace.path.stat().st_uid) for workspace in arena.workspaces]
    assert len({"0", *users}) == 3
    assert [result.stdout.split() for result in results] == [[*[user] * 6, "[]"] for user in users]
