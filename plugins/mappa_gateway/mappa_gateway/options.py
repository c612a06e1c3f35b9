"""Options of the workflow `gateway`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ExternalAgent:
    """An external agent and the names by which requests refer to it."""

    brief: str = "???"
    """Description of its role, for its coach."""
    rubric: str | None = None
    """Markdown file with the rubric by which a coach judges it; null: the general rubric."""
    prompt: str | None = None
    """File with its instructions, word for word as its requests hold them, in whose place a run may put others; null:
    they are not known."""
    models: list[str] = field(default_factory=list)
    """Further values of `model` that refer to this agent (gpt-4o), beside its name."""


@dataclass
class GatewayOptions:
    """Exactly one of `function` and `command` is set."""

    agents: dict[str, ExternalAgent] = field(default_factory=dict)
    """Agents by name. A single agent is selected by every value of `model`."""
    function: str | None = None
    """`module:function`, plain or async. It gets an Assignment (task, base_url, root_url, api_key, seed), and returns
    the final answer as text, or None. A plain one runs in its own thread, asynchronous ones share an event loop.
    Modules of the working directory can be imported."""
    command: list[str] = field(default_factory=list)
    """A program and its arguments. It gets the task's prompt on standard input and prints the final answer. Its
    environment has OPENAI_BASE_URL, OPENAI_API_KEY, the same for Anthropic's clients (ANTHROPIC_BASE_URL,
    ANTHROPIC_AUTH_TOKEN, ANTHROPIC_API_KEY), and MAPPA_TASK, the path of a JSON file with the whole task."""
    answer: str = "output"
    """What is graded: `output` (what the function returns, or the command prints) | `last` (the last action's text)"""
    grade: str = "exact"
    """`exact` (equal to the truth, without white space around it) | `module:function` of the answer and the task, plain
    or async, to a number from 0 to 1"""
    silence_s: float = 300.0
    """Seconds without a running request after which an agent is abandoned."""
    max_actions: int = 64
    """Maximum actions of one trajectory; beyond it the agent is abandoned."""
    at_once: int = 1
    """Requests of one trajectory that run at once; others wait. More than 1 requires an engine that is not
    deterministic."""
    on_divergence: str = "stop"
    """If an agent does not repeat its recorded requests on resume: `stop` (the run, with an error that names the
    action) | `fail` (this trajectory alone)"""
