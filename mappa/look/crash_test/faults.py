"""Faults that can be planted in an action, whatever the team: each rewrites the action's text, or leaves it alone.

A package adds its own by an entry point of the group `mappa.faults` that names a `Fault`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from random import Random

from mappa_core import PluginError, Step, Trajectory

FAULT_GROUP = "mappa.faults"
_FENCED = re.compile(r"(```[^\n]*\n)(.*?)(\n?```)", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_STRING = re.compile(r"(['\"])([A-Za-z_][\w. -]*)\1")
_NAME = re.compile(r"\b[A-Za-z_]{2,}\b")
_CALL = re.compile(r"(\w+\()([^(),]+), *([^(),]+)(\))")
_OPERATION = re.compile(r"(\w+) *([-+*/]) *(\w+)")
_WRITE = re.compile(r"\b(?:to_csv|to_pickle|to_parquet|to_json|dump|savefig|save|write|write_text|write_bytes)\(")
_ITEM = re.compile(r"^- (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlantSite:
    """An action in which a fault may be planted: a step of a trajectory that succeeded, the same agent's actions on
    other tasks, and the source of random choices."""

    step: Step
    trajectory: Trajectory
    elsewhere: Sequence[Step]
    random: Random

    @property
    def text(self) -> str:
        return self.step.completion.text

    @property
    def prompt(self) -> str:
        """What the agent was last shown."""
        return self.step.messages[-1].content if self.step.messages else ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. `plant` returns the text with the fault, or None where there is no place for it."""

    name: str
    plant: Callable[[PlantSite], str | None]


def plant_fault(fault: Fault, site: PlantSite) -> str | None:
    """The faulty text; None where the fault has no place or changes nothing."""
    text = fault.plant(site)
    return None if text is None or text.strip() == site.text.strip() else text


def wrong_number(site: PlantSite) -> str | None:
    """One of its numbers is another one."""
    return _replace_one(_NUMBER, site, lambda match: str(int(match[0]) + site.random.randint(1, 9)))


def wrong_operator(site: PlantSite) -> str | None:
    """A sum becomes a difference, a product a sum."""
    other = {"+": "-", "-": "+", "*": "+", "/": "*"}
    return _replace_one(_OPERATION, site, lambda match: f"{match[1]} {other[match[2]]} {match[3]}")


def swapped_argument(site: PlantSite) -> str | None:
    """Two arguments of a call, operands of a subtraction or division, or the first two words change places."""
    swapped = _replace_one(_CALL, site, lambda match: f"{match[1]}{match[3]}, {match[2]}{match[4]}")
    if swapped is not None:
        return swapped
    operands = re.compile(r"(\w+)( *[-/] *)(\w+)")
    turned = _replace_one(operands, site, lambda match: f"{match[3]}{match[2]}{match[1]}")
    if turned is not None:
        return turned
    words = site.text.split()
    return " ".join([words[1], words[0], *words[2:]]) if len(words) > 1 else None


def renamed_column(site: PlantSite) -> str | None:
    """A quoted name, or else a word, gets another ending."""
    quoted = _replace_one(_STRING, site, lambda match: f"{match[1]}{match[2]}_1{match[1]}")
    return quoted if quoted is not None else _replace_one(_NAME, site, lambda match: f"{match[0]}_1")


def dropped_file(site: PlantSite) -> str | None:
    """The last line that writes a file is left out."""
    lines = site.text.split("\n")
    writes = [number for number, line in enumerate(lines) if _WRITE.search(line)]
    if not writes:
        return None
    line = lines[writes[-1]]
    indent = line[: len(line) - len(line.lstrip())]
    return "\n".join([*lines[: writes[-1]], f"{indent}pass", *lines[writes[-1] + 1 :]])


def wrong_choice(site: PlantSite) -> str | None:
    """Another item of the list that the agent was shown."""
    items = [item.strip() for item in _ITEM.findall(site.prompt)]
    others = [item for item in items if item != site.text.strip()]
    return site.random.choice(others) if site.text.strip() in items and others else None


def truncated_output(site: PlantSite) -> str | None:
    """Only its first half."""
    return site.text[: len(site.text) // 2] if len(site.text) > 1 else None


def ignored_instruction(site: PlantSite) -> str | None:
    """Politeness in place of work."""
    return "Certainly. I will look into this and come back to you."


def stale_answer(site: PlantSite) -> str | None:
    """What the same agent did on another task."""
    texts = sorted({step.completion.text for step in site.elsewhere} - {site.text})
    return site.random.choice(texts) if texts else None


def broken_code(site: PlantSite) -> str | None:
    """Programs lose their last bracket or gain one; a text without programs is garbled."""
    match = _FENCED.search(site.text)
    if match is None:
        return site.text[::-1] if len(site.text) > 1 else None
    body = match[2]
    broken = body[: body.rindex(")")] + body[body.rindex(")") + 1 :] if ")" in body else body + "("
    return site.text[: match.start(2)] + broken + site.text[match.end(2) :]


def leaked_fence(site: PlantSite) -> str | None:
    """The end of its program is no end, or a fence opens that no program needs."""
    match = _FENCED.search(site.text)
    return "```\n" + site.text if match is None else site.text[: match.start(3)]


def silent_no_op(site: PlantSite) -> str | None:
    """Programs that do nothing, or an empty reply."""
    match = _FENCED.search(site.text)
    return "" if match is None else site.text[: match.start(2)] + "pass" + site.text[match.end(2) :]


def echoed_input(site: PlantSite) -> str | None:
    """The first line of what it was shown, in place of an answer."""
    lines = [line.strip() for line in site.prompt.split("\n") if line.strip()]
    return lines[0] if lines else None


def negated_claim(site: PlantSite) -> str | None:
    """The opposite of what it says, where it says it in one line."""
    text = site.text.strip()
    return f"not {text}" if text and "\n" not in text else None


FAULTS: tuple[Fault, ...] = (
    Fault("wrong number", wrong_number),
    Fault("wrong operator", wrong_operator),
    Fault("swapped argument", swapped_argument),
    Fault("renamed column", renamed_column),
    Fault("dropped file", dropped_file),
    Fault("wrong choice", wrong_choice),
    Fault("truncated output", truncated_output),
    Fault("ignored instruction", ignored_instruction),
    Fault("stale answer", stale_answer),
    Fault("broken code", broken_code),
    Fault("leaked fence", leaked_fence),
    Fault("silent no-op", silent_no_op),
    Fault("echoed input", echoed_input),
    Fault("negated claim", negated_claim),
)


def load_faults() -> tuple[Fault, ...]:
    """The faults of Mappa, then those of installed packages. Raises PluginError if one cannot be used."""
    faults = list(FAULTS)
    for entry in entry_points(group=FAULT_GROUP):
        try:
            fault = entry.load()
        except Exception as error:
            raise PluginError(f"the fault {entry.name!r} of {entry.value} cannot be loaded: {error}") from error
        if not isinstance(fault, Fault):
            raise PluginError(
                f"the entry point {entry.name!r} of the group {FAULT_GROUP} names no Fault: {entry.value}"
            )
        if any(fault.name == other.name for other in faults):
            raise PluginError(f"two packages offer the fault {fault.name!r}; the second is {entry.value}")
        faults.append(fault)
    return tuple(faults)


def _replace_one(pattern: re.Pattern[str], site: PlantSite, new: Callable[[re.Match[str]], str]) -> str | None:
    """The text with one match, drawn at random, replaced; None if there is none."""
    matches = list(pattern.finditer(site.text))
    if not matches:
        return None
    match = site.random.choice(matches)
    return site.text[: match.start()] + new(match) + site.text[match.end() :]
