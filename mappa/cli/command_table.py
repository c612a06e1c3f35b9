"""The commands of this project by group, each with its line of help, so that a list of them imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

HERE, LOOK, ELSEWHERE = "mappa.cli", "mappa.look.cli", None


@dataclass(frozen=True, slots=True)
class ListedCommand:
    """`summary` is the command's own short help; a test compares them. The command is `command` in the module of its
    name in `package`; None: another distribution brings it, by an entry point."""

    summary: str
    package: str | None


GROUPS: Mapping[str, Mapping[str, ListedCommand]] = MappingProxyType({
    "look": {
        "import": ListedCommand("Turn logs of other frameworks, and labels of people, into a run.", LOOK),
        "observe": ListedCommand("Show which agent fails, how often and why; trains nothing.", LOOK),
        "runs": ListedCommand("List runs, show one, print what happened in a trajectory.", LOOK),
        "view": ListedCommand("Show runs in the browser, live while they train.", LOOK),
        "report": ListedCommand("Write report.html of runs again, and print what was learned.", LOOK),
        "compare": ListedCommand("Compare settings by held-out results, paired and over seeds.", LOOK),
        "export": ListedCommand("Write a run's agents as models, actions as data, or verdicts to a tracer.", LOOK),
        "demo": ListedCommand("Show a play that failed, and who is to blame; it comes with Mappa.", LOOK),
        "docs": ListedCommand("Read the documentation: a page by its name, or pages on a TOPIC.", LOOK),
    },
    "judge": {
        "judge": ListedCommand("Judge the recorded actions of a run with a coach; trains nothing.", LOOK),
        "prove": ListedCommand("Prove whom a coach blames, by playing failed plays on.", LOOK),
        "coach": ListedCommand("Certify coaches, label plays, make a coach of your labels.", LOOK),
    },
    "train": {
        "train": ListedCommand("Train a team of agents on a coach's verdict of every action.", HERE),
        "warm-start": ListedCommand("Teach a team by examples, before reinforcement.", HERE),
        "eval": ListedCommand("Grade start models, or a run's checkpoint, on held-out tasks.", HERE),
        "sweep": ListedCommand("Train every combination of settings with every seed, and compare.", LOOK),
        "plan": ListedCommand("Show what a recipe takes: memory, tokens, calls, money, time.", LOOK),
        "improve": ListedCommand("Search for better prompts of a team, without changing weights.", ELSEWHERE),
        "advise": ListedCommand("Find out which fix of a team is worth making.", ELSEWHERE),
        "gateway": ListedCommand("Play tasks with an agent of your own, and show its requests.", ELSEWHERE),
    },
    "extend": {
        "new": ListedCommand("Write a package with a new workflow, coach, tool or other offer.", HERE),
        "plugins": ListedCommand("List plugins, what they offer, and which are broken.", LOOK),
        "config": ListedCommand("Show every setting of a run, its value and who set it.", HERE),
        "doctor": ListedCommand("Show what is installed and usable here; keys only by name.", HERE),
    },
})  # fmt: skip
"""In the order in which they are listed."""

UNLISTED: Mapping[str, ListedCommand] = MappingProxyType({
    "completion": ListedCommand("Print the script that completes `mappa` in a shell.", HERE),
    "sandbox": ListedCommand("Try the sandbox that the programs of agents run in.", ELSEWHERE),
})  # fmt: skip
"""Set up or tried once, and named by the pages that are about it."""

FIRST = ("demo", "observe", "judge", "view", "train", "eval", "docs", "doctor")
"""What stands on the first screen with a line each: see what Mappa is, look at logs of one's own, train, find help."""

COMMANDS: Mapping[str, ListedCommand] = MappingProxyType({
    name: command for group in (*GROUPS.values(), UNLISTED) for name, command in group.items()
})  # fmt: skip
