"""What each agent is shown: prompts in Markdown, one file per agent and one for what its code did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from mappa_core import ConfigError, ToolCall, ToolResult, cut_middle

PROMPTS = Path(__file__).parent / "prompts"
RESULTS = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one action hands on: its words without think text, what its code did, and what the coach said of it."""

    agent: str
    text: str
    results: str = ""
    feedback: str = ""


class Briefing:
    """The prompts of one folder: `NAME.md` for every agent, and `results.md`.

    `prompts` names a set that comes with the plugin (`full`, `tiny`) or is a path to a folder of one's own. Agents'
    templates get `problem`, `earlier` (Contributions, oldest first) and `token_limit`; `results.md` gets `runs`, each
    with `unrunnable` (why a block could not be run, or None), `status`, `exit_code`, `stdout` and `stderr`.
    """

    def __init__(self, prompts: str, agents: Sequence[str], *, token_limit: int, output_chars: int) -> None:
        folder = PROMPTS / prompts if (PROMPTS / prompts).is_dir() else Path(prompts)
        missing = [f"{name}.md" for name in (*agents, RESULTS) if not (folder / f"{name}.md").is_file()]
        if missing:
            known = ", ".join(sorted(path.name for path in PROMPTS.iterdir()))
            raise ConfigError(
                f"workflow.options.prompts: {folder} lacks {', '.join(missing)}; "
                f"name one of the sets {known}, or a folder that holds these files"
            )
        environment = SandboxedEnvironment(
            loader=FileSystemLoader(folder),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # prompts are plain text, not HTML
        )
        try:
            self._templates = {name: environment.get_template(f"{name}.md") for name in (*agents, RESULTS)}
        except TemplateError as error:
            raise ConfigError(f"workflow.options.prompts: a template in {folder} does not parse: {error}") from error
        self._token_limit = token_limit
        self._output_chars = output_chars

    def prompt(self, agent: str, problem: str, earlier: Sequence[Contribution]) -> str:
        """The one user message that opens an agent's part."""
        template = self._templates[agent]
        return template.render(problem=problem, earlier=tuple(earlier), token_limit=self._token_limit).strip()

    def results(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> str:
        """What the code of an action did, block by block; empty where it held none."""
        runs = [
            {
                "unrunnable": call.error,
                "status": result.status,
                "exit_code": result.exit_code,
                "stdout": cut_middle(result.stdout.strip(), self._output_chars),
                "stderr": cut_middle(result.stderr.strip(), self._output_chars),
            }
            for call, result in zip(calls, results, strict=True)
        ]
        return self._templates[RESULTS].render(runs=runs).strip() if runs else ""
