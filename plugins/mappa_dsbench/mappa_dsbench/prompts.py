"""The prompts of the team: what the templates of each agent get of a task.

The agents' templates get `task` (the text of the task), `table` (a table.Table: the problem, the features, what is
missing), `files` (paths in the workspace), `produces` (the files that the agent must leave), `earlier` (Contributions,
oldest first) and `token_limit`. `results.md` gets, beside `runs`, `unmet` (the unmet parts of the agent's contract,
each in two words: a path and `missing` or the code of a fault) and `files`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path

from mappa_core import Task, ToolCall, ToolResult
from mappa_core.coach import quote_name
from mappa_core.workflow import Contribution, PromptTemplates
from mappa_dsbench.roles import ROLES
from mappa_dsbench.table import table_of_task

PROMPT_SETS = Path(__file__).parent / "prompts"


class TeamPrompts:
    """The templates of the team; `prompts` names a set of the package (`full`, `tiny`) or is the path of a folder."""

    def __init__(self, prompts: str, *, token_limit: int, output_chars: int) -> None:
        self._templates = PromptTemplates(prompts, tuple(ROLES), sets=PROMPT_SETS, output_chars=output_chars)
        self._token_limit = token_limit

    @property
    def texts(self) -> Mapping[str, str]:
        """Source of the template of every agent."""
        return self._templates.texts

    def with_texts(self, texts: Mapping[str, str]) -> TeamPrompts:
        """Return templates with other `texts` of some agents. Raises ConfigError for one that does not parse."""
        changed = copy(self)
        changed._templates = self._templates.with_texts(texts)
        return changed

    def render_prompt(self, agent: str, task: Task, files: Sequence[str], earlier: Sequence[Contribution]) -> str:
        """Render the user message with which an agent's turns begin. TaskError: `task` is none of DSBench's."""
        values = {
            "task": task.prompt,
            "table": table_of_task(task),
            "files": tuple(map(quote_name, files)),
            "produces": ROLES[agent].produces,
            "earlier": tuple(earlier),
            "token_limit": self._token_limit,
        }
        return self._templates.render(agent, values)

    def render_results(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], unmet: Sequence[str], files: Sequence[str]
    ) -> str:
        """Render the message after an action that was not its agent's last: the results of its programs, and the
        `unmet` parts of its contract, in machine words: `X_test.pkl missing`, `X_train.pkl not_finite`."""
        return self._templates.render_results(
            calls, results, {"unmet": tuple(unmet), "files": tuple(map(quote_name, files))}
        )
