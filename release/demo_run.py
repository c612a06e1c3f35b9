"""Makes the run that `mappa demo` shows: `mathchat/tiny` for a few iterations from a fixed seed.

    python release/demo_run.py

It takes a minute, and is made anew where the schema of `run.db` or what a verdict says has changed. Weights, the lock
and the report are left out.
"""

from __future__ import annotations

import gzip
import io
import sqlite3
import tarfile
import tempfile
from contextlib import chdir, closing
from pathlib import Path

from mappa.sessions import Run

ARCHIVE = Path(__file__).parents[1] / "mappa/look/demo/run.tar.gz"
NAME = "demo"
SETTINGS = (
    "train.iterations=8", "train.prompts=8", "train.samples=2", "eval.problems=32", "eval.coach=true",
    "checkpoint.every=8", f"run.name={NAME}", "run.root=runs",
)  # fmt: skip
KEPT = ("config.yaml", "run.db", "summary.json")


def make(archive: Path) -> None:
    """Train the run in a folder of its own, and pack what is kept of it."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        run = Run.from_recipe("mathchat/tiny", *SETTINGS, seed=0).train().folder
        with closing(sqlite3.connect(run / "run.db")) as database:
            database.execute("PRAGMA journal_mode = DELETE")
            database.execute("VACUUM")
        archive.write_bytes(pack(run))


def pack(run: Path) -> bytes:
    """The kept files as one archive, which is the same for the same files."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name in KEPT:
            content = (run / name).read_bytes()
            entry = tarfile.TarInfo(f"{NAME}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


if __name__ == "__main__":
    make(ARCHIVE)
    print(f"wrote {ARCHIVE}, {ARCHIVE.stat().st_size:,} bytes")
