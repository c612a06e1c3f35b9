"""The facts that a probe found, written by the process that checks."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

REPORT_FILE = "found.json"
STARTED_LINE, AT_LINE, REPORT_LINE = "begun", "at", "report"
MAX_DETAIL_LENGTH = 200
"""Limit in characters."""


class Report:
    """Writes the findings to a file. Standard output says what file is being opened or tried, so that the cause is
    known if the program ends there, and in the end the digest of the findings: only the process that checks can write
    to it, as it is a socket, which no other process can open."""

    def __init__(self) -> None:
        self.faults: list[dict[str, str]] = []
        self.started = False

    def start(self) -> None:
        """Report that files can be opened."""
        if not self.started:
            self.started = True
            self._say(STARTED_LINE)

    def begin_file(self, path: str) -> None:
        """Report that work on a file begins."""
        self._say(f"{AT_LINE} {path}")

    def add_fault(self, code: str, path: str, detail: str) -> None:
        """Record a fault."""
        self.faults.append({"code": code, "path": path, "detail": " ".join(detail.split())[:MAX_DETAIL_LENGTH]})

    def close(self, **facts: Any) -> None:
        """Write the final report."""
        content = json.dumps({"faults": self.faults, **facts}, allow_nan=False).encode()
        with Path(REPORT_FILE).open("xb") as file:
            file.write(content)
        self._say(f"{REPORT_LINE} {hashlib.sha256(content).hexdigest()}")

    def _say(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
