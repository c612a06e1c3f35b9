"""Files of packages: prompts and rubrics in Markdown, which are sandboxed Jinja templates, and recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappa_core.errors import ConfigError
from mappa_core.records import ToolCall, ToolResult
from mappa_core.tools.truncate import cut_middle

if TYPE_CHECKING:
    from jinja2 import Environment

RESULTS_TEMPLATE = "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What later agents see of an action: its text without think text, its programs' results, the coach's feedback."""

    agent: str
    text: str
    results: str = ""
    feedback: str = ""


class PromptTemplates:
    """The templates of one folder: `NAME.md` for every agent, and `results.md`.

    `prompts`, an option of the workflow, names a set in the folder `sets` of its package or is the path of a folder.
    `results.md` gets `runs`, each with `unrunnable` (why a block could not be run, or None), `status`, `exit_code`,
    `stdout` and `stderr`, both cut to `output_chars` in the middle. Raises ConfigError if a template is missing or does
    not parse.
    """

    def __init__(self, prompts: str, agents: Sequence[str], *, sets: Path, output_chars: int) -> None:
        from jinja2 import TemplateError

        folder = sets / prompts if (sets / prompts).is_dir() else Path(prompts)
        names = (*agents, RESULTS_TEMPLATE)
        missing = [f"{name}.md" for name in names if not (folder / f"{name}.md").is_file()]
        if missing:
            known = ", ".join(sorted(path.name for path in sets.iterdir() if path.is_dir()))
            raise ConfigError(
                f"workflow.options.prompts: {folder} lacks {', '.join(missing)}; "
                f"name one of the sets {known}, or a folder that holds these files"
            )
        environment = create_prompt_environment(folder)
        try:
            self._templates = {name: environment.get_template(f"{name}.md") for name in names}
        except TemplateError as error:
            raise ConfigError(f"workflow.options.prompts: a template in {folder} does not parse: {error}") from error
        self._environment = environment
        self._output_chars = output_chars
        self.texts: Mapping[str, str] = {agent: (folder / f"{agent}.md").read_text("utf-8") for agent in agents}
        """Source of the template of every agent."""

    def with_texts(self, texts: Mapping[str, str]) -> PromptTemplates:
        """Return templates with other `texts` of some agents. Raises ConfigError for one that does not parse."""
        from jinja2 import TemplateError

        changed = copy(self)
        changed.texts = {**self.texts, **texts}
        try:
            templates = {agent: self._environment.from_string(text) for agent, text in texts.items()}
        except TemplateError as error:
            raise ConfigError(f"a prompt of {', '.join(texts)} does not parse as a template: {error}") from error
        changed._templates = {**self._templates, **templates}
        return changed

    def render(self, agent: str, values: Mapping[str, Any]) -> str:
        """Render the user message with which an agent's turns begin, from the variables of its template."""
        return self._templates[agent].render(values).strip()

    def render_results(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], values: Mapping[str, Any] | None = None
    ) -> str:
        """Render the results of an action's programs, block by block; `values` are further variables."""
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
        return self._templates[RESULTS_TEMPLATE].render(runs=runs, **(values or {})).strip()


def create_prompt_environment(*folders: Path) -> Environment:
    """Create a sandboxed template environment that searches `folders` in order."""
    from jinja2 import ChoiceLoader, FileSystemLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    loader = ChoiceLoader([FileSystemLoader(folder) for folder in folders])
    # Without escaping: prompts are plain text, not HTML.
    return SandboxedEnvironment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )


def read_rubric(package: str, agent: str) -> str:
    """Read `rubrics/AGENT.md` of a package, by which a coach judges the agent's actions."""
    return (files(package) / "rubrics" / f"{agent}.md").read_text(encoding="utf-8")


def find_recipes(package: str) -> Mapping[str, Traversable]:
    """Find the recipes of a package by name: the files `recipes/NAME.yaml`."""
    entries = (files(package) / "recipes").iterdir()
    return {entry.name.removesuffix(".yaml"): entry for entry in entries if entry.name.endswith(".yaml")}
