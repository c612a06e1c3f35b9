"""Prompt templates in Markdown: one file per agent, and one for the results of its code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from mappa_core import ConfigError, ToolCall, ToolResult, cut_middle

PROMPTS_FOLDER = Path(__file__).parent / "prompts"
RESULTS_TEMPLATE = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """The part of an action that later agents see: its text without think text, the results of its code, and the
    coach's feedback."""

    agent: str
    text: str
    results: str = ""
    feedback: str = ""


class PromptTemplates:
    """The templates of one folder: `NAME.md` for every agent, and `results.md`.

    `prompts` names a set that comes with the plugin (`full`, `tiny`) or is the path of a folder. The agents' templates
    get `problem`, `earlier` (Contributions, oldest first) and `token_limit`; `results.md` gets `runs`, each with
    `unrunnable` (why a block could not be run, or None), `status`, `exit_code`, `stdout` and `stderr`.
    """

    def __init__(self, prompts: str, agents: Sequence[str], *, token_limit: int, output_chars: int) -> None:
        folder = PROMPTS_FOLDER / prompts if (PROMPTS_FOLDER / prompts).is_dir() else Path(prompts)
        missing = [f"{name}.md" for name in (*agents, RESULTS_TEMPLATE) if not (folder / f"{name}.md").is_file()]
        if missing:
            known = ", ".join(sorted(path.name for path in PROMPTS_FOLDER.iterdir()))
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
            self._templates = {name: environment.get_template(f"{name}.md") for name in (*agents, RESULTS_TEMPLATE)}
        except TemplateError as error:
            raise ConfigError(f"workflow.options.prompts: a template in {folder} does not parse: {error}") from error
        self._token_limit = token_limit
        self._output_chars = output_chars

    def render_prompt(self, agent: str, problem: str, earlier: Sequence[Contribution]) -> str:
        """Render the user message with which an agent's turns begin."""
        template = self._templates[agent]
        return template.render(problem=problem, earlier=tuple(earlier), token_limit=self._token_limit).strip()

    def render_results(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> str:
        """Render the results of an action's code, block by block; empty where it has no code."""
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
        return self._templates[RESULTS_TEMPLATE].render(runs=runs).strip() if runs else ""
