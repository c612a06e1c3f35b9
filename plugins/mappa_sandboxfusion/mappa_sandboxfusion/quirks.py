"""What SandboxFusion does otherwise than its API says, and what is done about it. All of it in one place.

| what the server does | what is done here |
|---|---|
| cuts a program's stdout and stderr in silence, or stops reading until the timeout | output goes to a file that is fetched; `output` refuses what may be cut |
| puts the text `[DecodeError] …` in the place of output that is not UTF-8 | the same |
| says `Success` although a file that was asked for is not there | `fetched` looks for each |
| answers HTTP 200 with `SandboxError` where it could not run the program, its text in the message | `fault` finds it, and cuts the text out |
| says `pong` although it can run nothing | a server counts as up once it has run a program (`findings.inspect`) |
| `memory_limit_MB` limits the stack too, so that no thread starts | off unless asked for; `remote/program.py` puts the stack back |
| leaves processes alive that outlive the program | the supervisor kills them there, and `remote/program.py` what outlived that |
| never reads `max_concurrency` | `pool.Pool` counts |
| skips files with `IGNORE_THIS_FILE` in their name | files of agents travel as one file, under a name of ours |
| writes and reads through links, at any path | files of agents are put in place by `remote/incoming.py`, and compared with its list |
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Sequence

from mappa_core import one_line
from mappa_sandboxfusion.client import CodeRun, ServerFault

UNCUT_CHARACTERS = 131_072
"""Characters from which on output may be cut, whatever the status says."""
DECODE_ERROR = "[DecodeError] "
NO_RUNTIME = ("sandbox-runtime", "Conda root directory not found")
"""Words of a message that says that the Python for programs is missing."""
PLACE_OF_CODE = "…"


def fault(url: str, code: str, run: CodeRun) -> ServerFault | None:
    """Why the server could not run `code`; None where it did, however the program ended."""
    if run.status != "SandboxError" and run.run_result is not None and run.run_result.status != "Error":
        return None
    said = run.message or (run.run_result.stderr if run.run_result else "") or "it gives no reason"
    reason = one_line(said.replace(code, PLACE_OF_CODE))
    if any(words in reason for words in NO_RUNTIME):
        reason += "; the server has no Python for programs: install its environment sandbox-runtime"
    return ServerFault(url, f"it could not run a program: {reason}")


def output(url: str, text: str | None) -> str:
    """The output of a program, where it is what the program wrote. Raises ServerFault where it may not be."""
    if text is None or text.startswith(DECODE_ERROR) or len(text) >= UNCUT_CHARACTERS:
        raise ServerFault(url, "the output of a program came back damaged or cut")
    return text


def fetched(url: str, asked: Sequence[str], run: CodeRun) -> dict[str, bytes]:
    """The files asked for. Raises ServerFault where one is missing, which the status does not say."""
    missing = [path for path in asked if path not in run.files]
    if missing:
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ServerFault(url, f"it says {run.status}, but these files did not come back: {names}")
    return {path: run.files[path] for path in asked}
