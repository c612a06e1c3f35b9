"""Rubrics: by what an agent's actions are judged, as Markdown templates.

Of an agent it is the file AGENT.md in the folder of `coach.options.rubrics`, else the rubric of its role in the
workflow, else core's general one. All are jinja2 in a sandbox. They know `agent` (its name), `role` (with `brief`,
`needs` and `produces`), `team` (the roles of all agents by name), `hindsight` (whether the outcome is known), `truth`
(whether the truth is shown) and `correction` (whether a better action is asked for). A template may include others of
its folder, and core's `general.md`.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    StrictUndefined,
    Template,
    TemplateError,
    TemplateNotFound,
    meta,
    nodes,
)
from jinja2.sandbox import SandboxedEnvironment

from mappa_core.errors import ConfigError
from mappa_core.records import Role

PROMPTS = Path(__file__).parent / "prompts"
GENERAL = "general.md"
KNOWN = frozenset({"agent", "role", "team", "hindsight", "truth", "correction"})


class Rubrics:
    """The rubrics of a coach. Templates are read and compiled once."""

    def __init__(self, folder: str | None) -> None:
        """Raises ConfigError where `folder` holds no templates, or one of them is wrong."""
        own = Path(folder) if folder is not None else None
        self._environment = environment(*([own] if own else []), PROMPTS)
        self._own = _read(own, self._environment) if own else {}
        self._general = compiled(
            self._environment, (PROMPTS / GENERAL).read_text(encoding="utf-8"), str(PROMPTS / GENERAL)
        )
        self._of_roles: dict[str, Template] = {}

    def text(self, agent: str, role: Role, **known: Any) -> str:
        """The rubric of `agent`; `known` is what templates know besides `agent` and `role`.

        Raises:
            ConfigError: the template is wrong.
        """
        return rendered(self._template(agent, role), agent=agent, role=role, **known)

    def _template(self, agent: str, role: Role) -> Template:
        if agent in self._own:
            return self._own[agent]
        if role.rubric is None:
            return self._general
        if role.rubric not in self._of_roles:
            where = f"the workflow's rubric of {agent}"
            self._of_roles[role.rubric] = compiled(self._environment, role.rubric, where)
        return self._of_roles[role.rubric]


def environment(*folders: Path) -> Environment:
    """Templates of `folders`, the first one first, in a sandbox."""
    return SandboxedEnvironment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in folders]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # prompts are plain text, not HTML
    )


def compiled(environment: Environment, source: str, where: str) -> Template:
    """A template from its source; `where` is the file, or whatever says where it comes from.

    Raises:
        ConfigError: it does not parse, or uses a name that no rubric knows.
    """
    try:
        tree = environment.parse(source, filename=where)
    except TemplateError as error:
        raise ConfigError(f"{where}:{getattr(error, 'lineno', 1)}: {error.message}") from error
    unknown = meta.find_undeclared_variables(tree) - KNOWN
    for name in tree.find_all(nodes.Name):
        if name.name in unknown:
            raise ConfigError(f"{where}:{name.lineno}: no {name.name!r} here; there are {', '.join(sorted(KNOWN))}")
    code = environment.compile(source, filename=where)
    return Template.from_code(environment, code, environment.make_globals(None))


def rendered(template: Template, **known: Any) -> str:
    """The text of a template.

    Raises:
        ConfigError: it cannot be rendered with what is `known`.
    """
    try:
        return template.render(**known).strip()
    except Exception as error:  # the boundary of templates: whatever is wrong in one is wrong with what the user gave
        what = f"there is no template {error}" if isinstance(error, TemplateNotFound) else str(error)
        raise ConfigError(f"{_place(error) or template.filename}: {what}") from error


def _read(folder: Path, environment: Environment) -> Mapping[str, Template]:
    if not folder.is_dir():
        raise ConfigError(f"coach.options.rubrics: there is no folder {folder}")
    files = sorted(folder.glob("*.md"))
    if not files:
        raise ConfigError(f"coach.options.rubrics: {folder} holds no template; a rubric is a file AGENT.md")
    return {path.stem: compiled(environment, path.read_text(encoding="utf-8"), str(path)) for path in files}


def _place(error: BaseException) -> str | None:
    """File and line of the template that an error comes from; jinja2 puts them into the traceback."""
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.endswith(".py")
    ]
    return places[-1] if places else None
