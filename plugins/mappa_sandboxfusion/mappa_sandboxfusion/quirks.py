"""Workarounds for deviations of SandboxFusion from its API, all in one place.

| behaviour of the server | workaround |
|---|---|
| truncates a program's stdout and stderr silently, or stops reading until the timeout | output goes to a file that is fetched; `check_output` refuses output that may be truncated |
| puts the text `[DecodeError] …` in the place of output that is not UTF-8 | the same |
| says `Success` although a requested file does not exist | `check_fetched` looks for each |
| answers HTTP 200 with `SandboxError` where it could not run the program, its text in the message | `find_fault` detects it, and cuts the text out |
| says `pong` although it cannot run programs | a server counts as available once it has run a program (`findings.inspect_server`) |
| `memory_limit_MB` limits the stack too, so that no thread starts | off unless asked for; `remote/program.py` puts the stack back |
| does not kill processes that outlive the program | the supervisor kills them there, and `remote/program.py` the rest |
| ignores `max_concurrency` | `pool.ServerPool` counts |
| skips files with `IGNORE_THIS_FILE` in their name | agents' files are sent as one file with a name of ours |
| writes and reads through links, at any path | `remote/apply_files.py` puts agents' files in place, and they are compared with its list |
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Sequence

from mappa_core.transport import one_line
from mappa_sandboxfusion.client import RunCodeResponse, ServerFault

MAX_UNCUT_CHARACTERS = 131_072
"""Length from which output may be truncated, whatever the status says."""
DECODE_ERROR_PREFIX = "[DecodeError] "
NO_RUNTIME_PHRASES = ("sandbox-runtime", "Conda root directory not found")
"""Phrases of messages that say that the Python for programs is missing."""
CODE_PLACEHOLDER = "…"


def find_fault(url: str, code: str, run: RunCodeResponse) -> ServerFault | None:
    """Return why the server could not run `code`; None where it ran, however the program ended."""
    if run.status != "SandboxError" and run.run_result is not None and run.run_result.status != "Error":
        return None
    message = run.message or (run.run_result.stderr if run.run_result else "") or "it gives no reason"
    reason = one_line(message.replace(code, CODE_PLACEHOLDER))
    if any(words in reason for words in NO_RUNTIME_PHRASES):
        reason += "; the server has no Python for programs: install its environment sandbox-runtime"
    return ServerFault(url, f"it could not run a program: {reason}")


def check_output(url: str, text: str | None) -> str:
    """Return the output of a program. Raises ServerFault where it may be truncated or damaged."""
    if text is None or text.startswith(DECODE_ERROR_PREFIX) or len(text) >= MAX_UNCUT_CHARACTERS:
        raise ServerFault(url, "the output of a program came back damaged or cut")
    return text


def check_fetched(url: str, requested: Sequence[str], run: RunCodeResponse) -> dict[str, bytes]:
    """Return the requested files. Raises ServerFault where one is missing, which the status does not show."""
    missing = [path for path in requested if path not in run.files]
    if missing:
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ServerFault(url, f"it says {run.status}, but these files did not come back: {names}")
    return {path: run.files[path] for path in requested}
