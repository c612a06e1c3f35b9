"""The distribution's own Python, whose prefix is /usr: its programs are sandboxed like those of any other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SYSTEM_PYTHON = Path("/usr/bin/python3")
PRINTS_ITS_VERSION = "import sys; print(sys.base_prefix, sys.version_info[0], sys.version_info[1])"
RUNS_A_PROGRAM = """
import asyncio, sys
from pathlib import Path
from mappa_core.records import ToolLimits
from mappa_core.tools.workspace import FolderWorkspace
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

async def main():
    tool = PythonTool(PythonOptions(sandbox="bubblewrap"))
    code = "import json, os; print(json.dumps(os.listdir('/usr')))"
    result = await tool.call({"code": code}, FolderWorkspace(Path(sys.argv[1])), ToolLimits())
    await tool.close()
    print(result.stdout or result.stderr)

asyncio.run(main())
"""


def fits() -> bool:
    """Whether it can use the packages of this interpreter, and is another one."""
    if not SYSTEM_PYTHON.exists():
        return False
    said = subprocess.run([SYSTEM_PYTHON, "-c", PRINTS_ITS_VERSION], capture_output=True, text=True, check=True).stdout
    return said.split() == ["/usr", *map(str, sys.version_info[:2])] and sys.base_prefix != "/usr"


@pytest.mark.skipif(not fits(), reason="no other Python of this version at /usr")
def test_a_program_of_the_distributions_python_runs_in_bubblewrap(tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    folders = [path for path in sys.path if Path(path).is_dir() and not path.startswith(sys.base_prefix)]
    (packages / "shared.pth").write_text(f"import sys; sys.path[:0] = {json.dumps(folders)}\n")
    done = subprocess.run(
        [environment / "bin" / "python", "-c", RUNS_A_PROGRAM, str(tmp_path / "work")],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    seen = json.loads(done.stdout)
    assert "bin" in seen and "src" not in seen  # of /usr what system_paths lists
