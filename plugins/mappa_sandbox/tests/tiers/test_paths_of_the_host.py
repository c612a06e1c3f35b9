"""What a program can read of how its sandbox was made: no path of the host but those that it may read anyway."""

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace

LOOK = """
import os
for name in {1, os.getppid(), *range(2, 40)}:
    if name != os.getpid():
        for what in ("cmdline", "environ", *(f"fd/{number}" for number in range(12))):
            try:
                with open(f"/proc/{name}/{what}", "rb", buffering=0) as file:
                    os.set_blocking(file.fileno(), False)
                    print(name, what, file.read(100_000))
            except OSError:
                pass
print("looked")
"""


async def test_no_process_of_the_sandbox_shows_paths_of_the_host(open_tool, tmp_path):
    workspace = FolderWorkspace(tmp_path / "a-folder-of-the-host")
    result = await (await open_tool()).call({"code": LOOK}, workspace, ToolLimits())
    assert result.stdout.endswith("looked\n"), result
    assert "a-folder-of-the-host" not in result.stdout and str(tmp_path) not in result.stdout
    assert "bind" not in result.stdout
