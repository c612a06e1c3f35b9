"""Rubrics: the criteria for an agent's actions, as sandboxed jinja2 templates, which may include each other."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template, TemplateError, TemplateNotFound, meta, nodes

from mappa_core.coaching.data_fences import quote_name
from mappa_core.errors import ConfigError
from mappa_core.records import Role
from mappa_core.redaction import clean_name
from mappa_core.tools.prompt_templates import create_prompt_environment

PROMPT_FOLDER = Path(__file__).parent / "prompts"
TEMPLATE_VARIABLES = frozenset({"agent", "role", "team", "hindsight", "truth", "correction"})


@dataclass(frozen=True, slots=True)
class BlindRole(Role):
    """Role of an agent under another name: judged by the rubric of `_agent`, rendered and then changed by `_hide`."""

    _agent: str = field(repr=False)
    _hide: Callable[[str], str] = field(repr=False)


def quote_files(role: Role) -> Role:
    """`role` with the names of its files as a model is shown them."""
    return replace(role, needs=tuple(map(quote_name, role.needs)), produces=tuple(map(quote_name, role.produces)))


class Rubrics:
    """The rubrics of a coach, read and compiled once: that of an agent is AGENT.md in the folder of
    `coach.options.rubrics`, else that of its role in the workflow, else core's `general.md`."""

    def __init__(self, folder: str | None) -> None:
        """Raises ConfigError if `folder` holds no templates, or one of them is invalid."""
        own_folders = [] if folder is None else [Path(folder)]
        # Core's templates too, so that a rubric of one's own may include them.
        self._environment = create_prompt_environment(*own_folders, PROMPT_FOLDER)
        self._own = _read_templates(own_folders[0], self._environment) if own_folders else {}
        self._general = create_prompt_environment(PROMPT_FOLDER).get_template("general.md")
        self._by_source: dict[str, Template] = {}

    def render(self, agent: str, role: Role, **variables: Any) -> str:
        """Render the rubric of `agent`. `variables` are `team` (the roles of all agents by name), `hindsight` (is the
        outcome known?), `truth` (is the truth shown?) and `correction` (is a better action asked for?). Raises
        ConfigError if the template is invalid."""
        if isinstance(role, BlindRole):
            # Under the real names, by which a template chooses what it says; `_hide` takes them out of the text.
            agent = role._agent
            variables["team"] = {member._agent: member for member in variables["team"].values()}
            shown = {**variables, "agent": agent, "role": role}
        else:
            team = {quote_name(name): quote_files(member) for name, member in variables["team"].items()}
            shown = {**variables, "team": team, "agent": quote_name(agent), "role": quote_files(role)}
        template = self._template(agent, role)
        try:
            text = template.render(shown).strip()
            # The general rubric shows only what the role says, in which names are hidden already; `_hide` could change
            # its own words.
            if isinstance(role, BlindRole) and template is not self._general:
                return role._hide(text)
            return text
        except Exception as error:  # Any error in a template is an error of the user's input.
            what = f"there is no template {error}" if isinstance(error, TemplateNotFound) else str(error)
            raise ConfigError(f"{_error_location(error) or template.filename}: {what}") from error

    def _template(self, agent: str, role: Role) -> Template:
        if role.rubric is None or agent in self._own:
            return self._own.get(agent, self._general)
        source = role.rubric
        if source not in self._by_source:
            self._by_source[source] = compile_template(
                self._environment, source, f"the workflow's rubric of {clean_name(agent)}"
            )
        return self._by_source[source]


def compile_template(environment: Environment, source: str, where: str) -> Template:
    """Compile a template; `where` names its origin. Raises ConfigError if it is invalid or has an unknown variable."""
    try:
        tree = environment.parse(source, filename=where)
    except TemplateError as error:
        raise ConfigError(f"{where}:{getattr(error, 'lineno', 1)}: {error.message}") from error
    unknown = meta.find_undeclared_variables(tree) - TEMPLATE_VARIABLES
    for name in tree.find_all(nodes.Name):
        if name.name in unknown:
            known = ", ".join(sorted(TEMPLATE_VARIABLES))
            raise ConfigError(f"{where}:{name.lineno}: no {name.name!r} here; there are {known}")
    return Template.from_code(environment, environment.compile(source, filename=where), environment.make_globals(None))


def _read_templates(folder: Path, environment: Environment) -> Mapping[str, Template]:
    if not folder.is_dir():
        raise ConfigError(f"coach.options.rubrics: there is no folder {folder}")
    files = sorted(folder.glob("*.md"))
    if not files:
        raise ConfigError(f"coach.options.rubrics: {folder} holds no template; a rubric is a file AGENT.md")
    return {path.stem: compile_template(environment, path.read_text(encoding="utf-8"), str(path)) for path in files}


def _error_location(error: BaseException) -> str | None:
    """Return file and line of the template that raised an error; jinja2 puts them into the traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.endswith(".py")]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
