"""Runs benchmarks, and writes what they came to: docs/speed.json, and the page docs/speed.md of it.

A row has the benchmark's last line, the command, the day, the commit and the machine. What is not run again keeps its
row, so that one benchmark can be repeated alone; `--page` runs none and writes the page of the rows that there are.

    make bench, or: python bench/speed.py [--only NAME]... [--page]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
ROWS, PAGE = ROOT / "docs" / "speed.json", ROOT / "docs" / "speed.md"
RESULT = re.compile(r"^ +print_result\(", re.MULTILINE)
CLUSTER = {"sync", "train_shape", "real_model --engine cluster"}
"""Benchmarks that run with the libraries of the cluster engine."""
FURTHER = {
    "real_model --engine cluster": ("--engine", "cluster"),
    "real_model --sampling": ("--sampling",),
    "train --against uncaged": ("--against", "uncaged", "--iterations", "30"),
}
"""Rows of a benchmark beside its own: their names, and the arguments that it is run with."""
HEAD = """# Speed

Each row is what one benchmark of the repository printed last: Mappa beside a rival, taking turns in one go, so that a
machine that is busy slows both. The figure is the median of their ratio over the rounds, with its 95 % bootstrap
interval. With few rounds that is too narrow: three rounds give their range, which covers the median in three of four
cases, seven cover it in 86 %. What is compared, and what is left out, stands at the head of each file. `make bench`
runs them all and writes this page and [the figures](speed.json); `.venv/bin/python bench/speed.py --only NAME` repeats
one row.
"""


def benchmarks() -> list[str]:
    """Names of the benchmarks, each with a row: the files beside this one that print a result, and `FURTHER`."""
    return sorted([*(path.stem for path in BENCH.glob("*.py") if RESULT.search(path.read_text())), *FURTHER])


def command(name: str) -> list[str]:
    """The command line of a benchmark, without its Python."""
    return [f"bench/{name.split()[0]}.py", *FURTHER.get(name, ())]


def question(name: str) -> str:
    """What a benchmark asks: the first sentence of its head."""
    head = ast.get_docstring(ast.parse((ROOT / command(name)[0]).read_text())) or ""
    first = " ".join(head.split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", first)[0].rstrip(".").replace("|", r"\|")


def measure(name: str) -> dict[str, Any]:
    """Run a benchmark; its row."""
    python = ROOT / (".venv-cluster" if name in CLUSTER else ".venv") / "bin" / "python"
    script, *arguments = command(name)
    done = subprocess.run([python, ROOT / script, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="", flush=True)
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        **json.loads(done.stdout.splitlines()[-1]),
        "command": " ".join(command(name)),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": head.stdout.strip() or None,
        "machine": f"{os.cpu_count()} cores, {processor()}",
    }


def processor() -> str:
    """What the processor calls itself."""
    cpus = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", cpus.read_text(), re.MULTILINE) if cpus.is_file() else None
    return found[1] if found else platform.machine()


def page(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of all benchmarks; those without a row are named as not measured."""
    lines = ["| benchmark | asks | ratio | of | against | when and where |", "|---|---|---|---|---|---|"]
    for name in benchmarks():
        row = rows.get(name)
        if row is None:
            lines.append(f"| `{' '.join(command(name))}` | {question(name)} | not measured yet | | | |")
            continue
        ratio = f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        where = ", ".join(str(row[key]) for key in ("date", "commit", "machine") if row[key] is not None)
        lines.append(
            f"| `{row['command']}` | {question(name)} | {ratio} | {row['unit']} | {row['against']} | {where} |"
        )
    return "\n".join([HEAD, *lines, ""])


def read_rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads(ROWS.read_text())
    return rows


def write(rows: Mapping[str, Mapping[str, Any]]) -> None:
    ROWS.write_text(json.dumps(dict(sorted(rows.items())), indent=2) + "\n")
    PAGE.write_text(page(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=benchmarks(), help="this benchmark; may be given again")
    parser.add_argument("--page", action="store_true", help="run nothing, and write the page anew")
    asked = parser.parse_args()
    rows = read_rows()
    for name in () if asked.page else asked.only or benchmarks():
        rows[name] = measure(name)
        write(rows)
    write(rows)


if __name__ == "__main__":
    main()
