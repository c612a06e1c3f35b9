"""What each agent is shown: prompts in Markdown, one file per agent and one for what an action led to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from mappa_core import ConfigError, Task, ToolCall, ToolResult, cut_middle
from mappa_dsbench.roles import ROLES
from mappa_dsbench.table import table_in

PROMPTS = Path(__file__).parent / "prompts"
RESULTS = "results"
FILES = (*ROLES, RESULTS)
"""The templates of a set, without their ending."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one action hands on to the next agent: its words without think text, and what its programs did."""

    agent: str
    text: str
    results: str = ""


class Briefing:
    """The prompts of one folder: `NAME.md` for every agent, and `results.md`.

    `prompts` names a set that comes with the plugin (`full`, `tiny`) or is a path to a folder of one's own. Agents'
    templates get `task` (the text of the task), `table` (a table.Table: the problem, the features, what is missing),
    `files` (paths in the workspace), `produces` (what the agent must leave), `earlier` (Contributions, oldest first)
    and `token_limit`. `results.md` gets `runs`, each with `unrunnable` (why a block could not be run, or None),
    `status`, `exit_code`, `stdout` and `stderr`; `unmet` (what of the agent's contract is not met, each in two words:
    a path and `missing` or the code of a fault) and `files`.
    """

    def __init__(self, prompts: str, *, token_limit: int, output_chars: int) -> None:
        folder = PROMPTS / prompts if (PROMPTS / prompts).is_dir() else Path(prompts)
        if missing := [f"{name}.md" for name in FILES if not (folder / f"{name}.md").is_file()]:
            known = ", ".join(sorted(path.name for path in PROMPTS.iterdir() if path.is_dir()))
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
            self._templates = {name: environment.get_template(f"{name}.md") for name in FILES}
        except TemplateError as error:
            raise ConfigError(f"workflow.options.prompts: a template in {folder} does not parse: {error}") from error
        self._token_limit = token_limit
        self._output_chars = output_chars

    def opening(self, agent: str, task: Task, files: Sequence[str], earlier: Sequence[Contribution]) -> str:
        """The one user message that opens an agent's part. TaskError: `task` is none of DSBench's."""
        template = self._templates[agent]
        text = template.render(
            task=task.prompt,
            table=table_in(task),
            files=tuple(files),
            produces=ROLES[agent].produces,
            earlier=tuple(earlier),
            token_limit=self._token_limit,
        )
        return text.strip()

    def results(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], unmet: Sequence[str], files: Sequence[str]
    ) -> str:
        """What an agent is told after an action that was not its last: what its programs did, and what of its contract
        is `unmet` yet, in machine words: `X_test.pkl missing`, `X_train.pkl not_finite`."""
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
        return self._templates[RESULTS].render(runs=runs, unmet=tuple(unmet), files=tuple(files)).strip()
