"""The options of the workflow `gateway`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class OutsideAgent:
    """An agent as requests name it."""

    brief: str = "???"
    """What it is for, as its coach is told."""
    rubric: str | None = None
    """Markdown file by which a coach judges it; null: the general rubric."""
    models: list[str] = field(default_factory=list)
    """Further values of `model` that mean this agent (gpt-4o), beside its name."""


@dataclass
class GatewayOptions:
    """One of `function` and `command` is given."""

    agents: dict[str, OutsideAgent] = field(default_factory=dict)
    """By name. Where there is one alone, every value of `model` means it."""
    function: str | None = None
    """`module:function`, plain or async. It gets an Assignment (task, base_url, api_key, seed) in a thread of its own,
    and returns the final answer as text, or None. Modules of the working directory can be named."""
    command: list[str] = field(default_factory=list)
    """A program and its arguments. It gets the task's prompt on standard input and prints the final answer. In its
    environment are OPENAI_BASE_URL, OPENAI_API_KEY, and MAPPA_TASK, the path of a JSON file with the whole task."""
    answer: str = "output"
    """What is graded: `output` (what the function returns, or the command prints) | `last` (the last action's text)"""
    grade: str = "exact"
    """`exact` (the truth, but for white space around it) | `module:function` of the answer and the task, plain or
    async, to a number from 0 to 1"""
    silence_s: float = 300.0
    """Seconds without a request under way after which an agent is given up."""
    max_actions: int = 64
    """Actions of one trajectory beyond which its agent is given up."""
    at_once: int = 1
    """Requests of one trajectory that are under way at once; others wait. More than 1 needs an engine that is not
    deterministic."""
    on_divergence: str = "stop"
    """Where an agent does not repeat its recorded requests on resume: `stop` (the run, with an error that names the
    action) | `fail` (this trajectory alone)"""
