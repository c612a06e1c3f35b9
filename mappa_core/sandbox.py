"""What authors of tools that run programs import, and of workspaces: limits, changes of files, how output is cut."""

from mappa_core.config.schema import ToolSection as ToolSection
from mappa_core.protocols import ProgramRun as ProgramRun
from mappa_core.protocols import Sandboxed as Sandboxed
from mappa_core.records import FileChange as FileChange
from mappa_core.records import Sandbox as Sandbox
from mappa_core.tools.owned_folder import OwnedFolder as OwnedFolder
from mappa_core.tools.owned_folder import own_folder as own_folder
from mappa_core.tools.owned_folder import sweep_folders as sweep_folders
from mappa_core.tools.parse_calls import PYTHON as PYTHON
from mappa_core.tools.retry import retry as retry
from mappa_core.tools.tool_limits import to_tool_limits as to_tool_limits
from mappa_core.tools.truncate import SMALLEST_LIMIT as SMALLEST_LIMIT
from mappa_core.tools.truncate import cut_middle as cut_middle
from mappa_core.tools.truncate import cut_note as cut_note
from mappa_core.tools.truncate import split_limit as split_limit
from mappa_core.tools.workspace import FolderWorkspace as FolderWorkspace
