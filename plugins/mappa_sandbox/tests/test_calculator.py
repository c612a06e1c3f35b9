"""The tool `calculator`; its arithmetic is core's, and is tested there."""

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox.calculator import Calculator


async def test_the_calculator_is_a_tool(tmp_path):
    tool, workspace = Calculator(), FolderWorkspace(tmp_path)
    good = await tool.call({"expression": "3 * 4"}, workspace, ToolLimits())
    bad = await tool.call({"expression": "3 *"}, workspace, ToolLimits())
    assert (good.tool, good.status, good.stdout) == ("calculator", "ok", "12")
    assert (bad.status, bad.stdout) == ("error", "") and "not an arithmetic expression" in bad.stderr
    await tool.close()
