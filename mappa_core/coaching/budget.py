"""How much evidence fits: an estimate of tokens, and what is cut in which order.

Where one text alone takes more than a quarter of the room, its middle is cut down to that first, so that a flood of
output costs nothing but itself. Then, from what a coach can best do without to what it cannot:

1. earlier actions are left out whole, the oldest first; then later ones, the furthest first;
2. the middle of what the agent was shown is cut, the longest message first;
3. the middle of what its tools answered;
4. the middle of the task; 5. of the lists of files; 6. of the agent's thinking; 7. of what was called beside the reply;
8. of the truth; 9. of the agent's reply.

Each step goes only as far as is needed, and no text below FLOOR characters before all have come to that; only then are
exhibits of 2 to 7 left out whole, in the same order, the oldest first. What was checked by machine, how calls and the
action ended, and the outcome are never cut. Every cut is marked where it was made, and named in a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from mappa_core.coaching.evidence import Exhibit, Kind
from mappa_core.coaching.fences import PREFIX, fenced, lines_of
from mappa_core.errors import CoachError
from mappa_core.tools.cut import SMALLEST_LIMIT, cut_middle

FLOOR = 400
CHARACTERS_PER_TOKEN = 8
"""More than any tokenizer makes of one on average: so much of a text is looked at, and the rest cannot fit."""
ROUNDS = 6
ANY_MARK = "0123456789abcdef"
"""Stands for the mark where tokens are told, so that what is cut does not depend on it."""

_IN_SHORT: tuple[Kind, ...] = ("earlier", "later")
_IN_THE_MIDDLE: tuple[Kind, ...] = (
    "shown",
    "answered",
    "task",
    "files",
    "thought",
    "called",
    "found",
    "truth",
    "wrote",
)
_AT_LAST: tuple[Kind, ...] = ("shown", "answered", "task", "files", "thought", "called")
_WORDS = bytes({*b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz \t\n", *range(128, 256)})


def estimate(text: str) -> float:
    """Tokens of `text`, rather too many than too few: one for each digit and ASCII sign, one for three bytes of others.

    Held against four tokenizers: 1.3 to 1.8 times their count on prose, code, LaTeX and tracebacks, 0.9 to 2.3 times on
    tables of numbers, 0.7 to 2.8 times on scripts other than Latin. Random letters have up to twice as many.
    """
    data = text.encode("utf-8", "surrogatepass")
    signs = len(data.translate(None, _WORDS))
    return signs + (len(data) - signs) / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """An exhibit as it stands in a question. `lines` are those of its data, perhaps shorter than it was, which `cut`
    tells; `tokens` an estimate of all of it with its fence."""

    exhibit: Exhibit
    lines: str | None
    tokens: float
    cut: bool = False


def sheet(exhibit: Exhibit, longest: int) -> Sheet:
    """`exhibit` with about `longest` characters of its data at most, escapes included."""
    tokens, data = _of_ours(f"{exhibit.title}\n\n"), exhibit.data
    if data is None:
        return Sheet(exhibit=exhibit, lines=None, tokens=tokens)
    lines = lines_of(cut_middle(data, longest))
    if len(lines) > longest and (length := _length(lines)) > longest:
        longest = max(SMALLEST_LIMIT, longest * longest // length)
        lines = lines_of(cut_middle(data, longest))
    tokens += _of_ours("\n" + fenced("", ANY_MARK)) + estimate(lines)
    return Sheet(exhibit=exhibit, lines=lines, tokens=tokens, cut=len(data) > longest)


@lru_cache(maxsize=4096)
def _of_ours(text: str) -> float:
    return estimate(text)


def _length(lines: str) -> int:
    """Characters of a text as it stands in a fence, without the prefixes."""
    return len(lines) - len(PREFIX) * (lines.count("\n") + 1)


def total(sheets: Sequence[Sheet]) -> float:
    """Tokens of all `sheets`, estimated."""
    return sum(one.tokens for one in sheets)


def cuts(sheets: Sequence[Sheet]) -> tuple[str, ...]:
    """What of `sheets` was cut or left out, in our words, in order."""
    return tuple(one.exhibit.name for one in sheets if one.cut)


def fit(sheets: Sequence[Sheet], budget: float) -> tuple[Sheet, ...]:
    """`sheets` in at most `budget` tokens, estimated.

    Raises:
        CoachError: what is never cut does not fit.
    """
    kept = list(sheets)
    for kind in _AT_LAST:
        kept = _shorter(kept, kind, budget, least=budget / 4)
    for kind in _IN_SHORT:
        kept = _without(kept, kind, budget)
    for kind in _IN_THE_MIDDLE:
        kept = _shorter(kept, kind, budget)
    for kind in _AT_LAST:
        kept = _without(kept, kind, budget)
    if total(kept) > budget:
        raise CoachError(f"of the evidence {total(kept):.0f} tokens are never cut; there is room for {budget:.0f}")
    return tuple(kept)


def _shorter(sheets: list[Sheet], kind: Kind, budget: float, least: float = 0.0) -> list[Sheet]:
    """Cut the texts of one kind in the middle, the longest first, until all sheets fit or these have come down to
    `least` tokens or to the floor."""
    sizes = {place: one.tokens for place, one in enumerate(sheets) if one.exhibit.kind == kind and one.lines}
    if total(sheets) <= budget or not sizes:
        return sheets
    others = total(sheets) - sum(sizes.values())
    level = _level(list(sizes.values()), budget - others)
    kept = list(sheets)
    # A text is not equally dense everywhere: what is left of it may have more tokens than its share.
    for _ in range(ROUNDS):
        level = max(level, least)
        for place, tokens in sizes.items():
            if tokens > level:
                length = _length(sheets[place].lines or "")
                kept[place] = sheet(sheets[place].exhibit, max(FLOOR, int(length * level / tokens)))
        if total(kept) <= budget:
            break
        level *= 0.97 * max(0.0, budget - others) / (total(kept) - others)
    return kept


def _level(sizes: Sequence[float], room: float) -> float:
    """The size to which the largest of `sizes` have to come down so that all fit into `room`."""
    left = sorted(sizes)
    while left and left[0] * len(left) <= room:
        room -= left.pop(0)
    return max(room, 0.0) / len(left) if left else max(sizes)


def _without(sheets: list[Sheet], kind: Kind, budget: float) -> list[Sheet]:
    """Leave out exhibits of one kind until all sheets fit: in order, later actions from the end."""
    excess = total(sheets) - budget
    groups = [list(group) for _, group in groupby(sheets, key=lambda one: (one.exhibit.kind, one.exhibit.name))]
    places = [place for place, group in enumerate(groups) if group[0].exhibit.kind == kind]
    before = None
    for place in reversed(places) if kind == "later" else places:
        if excess <= 0:
            break
        mark = _left_out(groups[place][0].exhibit)
        # Marks in a row become one, which names the first and the last.
        excess -= total(groups[place]) - (0 if before in (place - 1, place + 1) else 2 * mark.tokens)
        groups[place], before = [mark], place
    return list(_joined([one for group in groups for one in group]))


def _left_out(exhibit: Exhibit) -> Sheet:
    return replace(sheet(replace(exhibit, title=f"[left out: {exhibit.name}]", data=None), FLOOR), cut=True)


def _joined(sheets: Sequence[Sheet]) -> Iterator[Sheet]:
    """`sheets` with one mark in place of several of one kind in a row."""
    for (left_out, _), run in groupby(sheets, key=lambda one: (one.cut and one.lines is None, one.exhibit.kind)):
        marks = list(run)
        if not left_out or len(marks) == 1:
            yield from marks
            continue
        name = f"{marks[0].exhibit.name} to {marks[-1].exhibit.name}"
        yield _left_out(replace(marks[0].exhibit, name=name))
