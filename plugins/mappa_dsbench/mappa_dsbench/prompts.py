"""Prompt templates in Markdown: one file per agent, and one for the results of an action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from mappa_core import ConfigError, Task, ToolCall, ToolResult, cut_middle
from mappa_dsbench.roles import ROLES
from mappa_dsbench.table import table_of_task

PROMPTS_FOLDER = Path(__file__).parent / "prompts"
RESULTS_TEMPLATE = "results"
TEMPLATE_NAMES = (*ROLES, RESULTS_TEMPLATE)
"""The templates of a set, without suffix."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """The part of an action that later agents see: its text without think text, and the results of its programs."""

    agent: str
    text: str
    results: str = ""


class PromptTemplates:
    """The templates of one folder: `NAME.md` for every agent, and `results.md`.

    `prompts` names a set that comes with the plugin (`full`, `tiny`) or is the path of a folder. The agents' templates
    get `task` (the text of the task), `table` (a table.Table: the problem, the features, what is missing), `files`
    (paths in the workspace), `produces` (the files that the agent must leave), `earlier` (Contributions, oldest first)
    and `token_limit`. `results.md` gets `runs`, each with `unrunnable` (why a block could not be run, or None),
    `status`, `exit_code`, `stdout` and `stderr`; `unmet` (the unmet parts of the agent's contract, each in two words:
    a path and `missing` or the code of a fault) and `files`.
    """

    def __init__(self, prompts: str, *, token_limit: int, output_chars: int) -> None:
        folder = PROMPTS_FOLDER / prompts if (PROMPTS_FOLDER / prompts).is_dir() else Path(prompts)
        if missing := [f"{name}.md" for name in TEMPLATE_NAMES if not (folder / f"{name}.md").is_file()]:
            known = ", ".join(sorted(path.name for path in PROMPTS_FOLDER.iterdir() if path.is_dir()))
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
            self._templates = {name: environment.get_template(f"{name}.md") for name in TEMPLATE_NAMES}
        except TemplateError as error:
            raise ConfigError(f"workflow.options.prompts: a template in {folder} does not parse: {error}") from error
        self._token_limit = token_limit
        self._output_chars = output_chars

    def render_prompt(self, agent: str, task: Task, files: Sequence[str], earlier: Sequence[Contribution]) -> str:
        """Render the user message with which an agent's turns begin. TaskError: `task` is none of DSBench's."""
        template = self._templates[agent]
        text = template.render(
            task=task.prompt,
            table=table_of_task(task),
            files=tuple(files),
            produces=ROLES[agent].produces,
            earlier=tuple(earlier),
            token_limit=self._token_limit,
        )
        return text.strip()

    def render_results(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], unmet: Sequence[str], files: Sequence[str]
    ) -> str:
        """Render the message after an action that was not its agent's last: the results of its programs, and the
        `unmet` parts of its contract, in machine words: `X_test.pkl missing`, `X_train.pkl not_finite`."""
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
        return self._templates[RESULTS_TEMPLATE].render(runs=runs, unmet=tuple(unmet), files=tuple(files)).strip()
