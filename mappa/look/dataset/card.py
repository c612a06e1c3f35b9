"""Data set card: `dataset.json` for programs, README.md for people and for the library `datasets`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mappa.look.dataset.request import ExportRequest, ExportResult
from mappa_core.config.schema import RunConfig
from mappa_core.redaction import clean_line

CARD_SCHEMA = 1

_FORM_TITLES = {
    "sft": "Supervised fine-tuning (TRL: prompt-completion)",
    "dpo": "Preferences in pairs (TRL: preference, explicit prompt)",
    "kto": "Single labels (TRL: unpaired preference)",
}


_MARKUP = re.compile(r"[\\`*\[\]<>|~&$]")


def write_card(folder: Path, run: Path, request: ExportRequest, exported: ExportResult, config: RunConfig) -> None:
    """Write `dataset.json` and README.md into `folder`."""
    card = _card(run, request, exported, config)
    (folder / "dataset.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_readme(card, exported), encoding="utf-8")


def _card(run: Path, request: ExportRequest, exported: ExportResult, config: RunConfig) -> dict[str, Any]:
    truth = [agent for agent in exported.examples if agent in config.coach.reference_for]
    return {
        "schema": CARD_SCHEMA,
        "form": request.form,
        "source": request.resolved_source,
        "run": run.name,
        "coach": config.coach.use,
        "truth_shown": truth,
        "gap": request.gap,
        "threshold": request.threshold,
        "filters": asdict(request.filters),
        "files": {agent: {"file": exported.files[agent], "examples": n} for agent, n in exported.examples.items()},
        "left_out": {agent: dict(reasons) for agent, reasons in exported.left_out.items()},
        "tools_without_schema": dict(exported.unknown_tools),
        "made_with": {"mappa-core": version("mappa-core")},
    }


def _readme(card: Mapping[str, Any], exported: ExportResult) -> str:
    names = json.dumps(exported.folder.name)
    first = Path(next(iter(exported.files.values()))).stem
    configs = "\n".join(
        f"- config_name: {json.dumps(Path(one['file']).stem)}\n  data_files: {json.dumps(one['file'])}"
        for one in card["files"].values()
    )
    tables = ["| agent | file | examples |", "|---|---|---|"]
    tables += [
        f"| {_plain(agent)} | {_plain(one['file'])} | {one['examples']:,} |" for agent, one in card["files"].items()
    ]
    left = [f"| {_plain(agent)} | {why} | {n:,} |" for agent, one in card["left_out"].items() for why, n in one.items()]
    if left:
        tables += ["", "Left out:", "", "| agent | why | actions |", "|---|---|---|", *left]
    if exported.unknown_tools:
        tables += ["", f"Not in `tools`, as the run has no schema of them: {_plain(format_unknown_tools(exported))}."]
    asked = {name: value for name, value in card["filters"].items() if value not in (None, (), [])}
    asked |= {name: card[name] for name in ("gap", "threshold") if card[name] is not None}
    lines = [
        "---",
        "configs:",
        configs,
        "---",
        f"# {_FORM_TITLES[card['form']]}",
        "",
        f"Made of the {card['source']} of the run {_plain(card['run'])}, judged by its coach {_plain(card['coach'])}; "
        f"one file per agent. Asked for: {_plain(json.dumps(asked, ensure_ascii=False))}.",
        "",
        *tables,
        "",
        *_warning(card),
        "```python",
        "from datasets import load_dataset",
        "",
        f'data = load_dataset({names}, {json.dumps(first)}, split="train")',
        "```",
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """`text` with names of strangers for Markdown: on one line of a paragraph or table, and nothing of it is markup."""
    return _MARKUP.sub(r"\\\g<0>", clean_line(text))


def format_unknown_tools(exported: ExportResult) -> str:
    """The tools without a schema, each with the number of its actions."""
    return ", ".join(f"{name} ({count:,} actions)" for name, count in sorted(exported.unknown_tools.items()))


def _warning(card: Mapping[str, Any]) -> list[str]:
    if not card["truth_shown"]:
        return []
    shown = ", ".join(map(_plain, card["truth_shown"]))
    return [f"The coach of {shown} was shown the truth: its scores know it, and its corrections may hold it.", ""]
