"""Token budget of the evidence: token estimates, and the order in which it is cut. Every cut is marked, and listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, groupby
from typing import get_args

from mappa_core.coaching.data_fences import LINE_PREFIX, fence_lines, prefix_lines
from mappa_core.coaching.evidence import Exhibit, ExhibitKind
from mappa_core.errors import CoachError
from mappa_core.tools.truncate import SMALLEST_LIMIT, cut_middle

MIN_CHARACTERS = 400
"""Length below which no text is shortened: it would say nothing any more."""
MAX_CHARACTERS_PER_TOKEN = 8
"""Of any tokenizer, on average: text beyond it cannot fit and is not scanned."""
MAX_SHORTENING_ROUNDS = 6
PLACEHOLDER_NONCE = "0123456789abcdef"
"""Stands for the nonce in token estimates, so that the cuts do not depend on it."""

_KINDS: tuple[ExhibitKind, ...] = get_args(ExhibitKind)
_DROPPED_FIRST = _KINDS[1:3]  # earlier, later
_SHORTENED = _KINDS[3:]  # all others but facts
_DROPPED_LAST = _KINDS[3:9]  # shown to called; what was found, the truth and the reply itself always stay
_WORDS = bytes({*b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz \t\n", *range(128, 256)})


def estimate_tokens(text: str) -> float:
    """Estimate the tokens of `text`, rather too high than too low: one per digit and ASCII sign, one per three other
    bytes. Compared with four tokenizers: 1.3 to 1.8 times their count on prose, code, LaTeX and tracebacks, 0.9 to 2.3
    times on tables of numbers, 0.7 to 2.8 times on scripts other than Latin."""
    data = text.encode("utf-8", "surrogatepass")
    signs = len(data.translate(None, _WORDS))
    return signs + (len(data) - signs) / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedExhibit:
    """An exhibit as rendered. `lines` are those of its data, shortened if `cut`; `tokens` include its fence."""

    exhibit: Exhibit
    lines: str | None
    tokens: float
    cut: bool = False


def render_exhibit(exhibit: Exhibit, max_characters: int) -> RenderedExhibit:
    """Render `exhibit` with at most about `max_characters` of its data, including escapes."""
    tokens, data = _estimate_cached(f"{exhibit.title}\n\n"), exhibit.data
    if data is None:
        return RenderedExhibit(exhibit=exhibit, lines=None, tokens=tokens)
    lines = prefix_lines(cut_middle(data, max_characters))
    length = _length(lines)
    if length > max_characters:
        # Escapes are longer than what they stand for. The second cut takes as many less as the first was over.
        max_characters = max(SMALLEST_LIMIT, max_characters * max_characters // length)
        lines = prefix_lines(cut_middle(data, max_characters))
    tokens += _estimate_cached("\n" + fence_lines("", PLACEHOLDER_NONCE)) + estimate_tokens(lines)
    return RenderedExhibit(exhibit=exhibit, lines=lines, tokens=tokens, cut=len(data) > max_characters)


_estimate_cached = lru_cache(maxsize=4096)(estimate_tokens)


def _length(lines: str) -> int:
    """The characters of a text in a fence, without the line prefixes."""
    return len(lines) - len(LINE_PREFIX) * (lines.count("\n") + 1)


def total_tokens(exhibits: Sequence[RenderedExhibit]) -> float:
    return sum(rendered.tokens for rendered in exhibits)


def cut_names(exhibits: Sequence[RenderedExhibit]) -> tuple[str, ...]:
    return tuple(rendered.exhibit.name for rendered in exhibits if rendered.cut)


def fit_to_budget(exhibits: Sequence[RenderedExhibit], budget: float) -> tuple[RenderedExhibit, ...]:
    """Cut `exhibits` to at most `budget` estimated tokens; each step goes only as far as needed, in the order of
    ExhibitKind. A text that takes more than a quarter of the budget is first cut in the middle to that size, so that a
    flood of output costs nothing but itself. Then earlier actions are left out, the oldest first, and later ones, the
    furthest first. Then texts are cut in the middle, the longest first, none below MIN_CHARACTERS; then exhibits up to
    tool calls are left out. Facts are never cut. Raises CoachError if these do not fit."""
    kept = list(exhibits)
    for kind in _DROPPED_LAST:
        kept = _shorten(kept, kind, budget, min_tokens=budget / 4)
    for kind in _DROPPED_FIRST:
        kept = _drop(kept, kind, budget)
    for kind in _SHORTENED:
        kept = _shorten(kept, kind, budget)
    for kind in _DROPPED_LAST:
        kept = _drop(kept, kind, budget)
    tokens = total_tokens(kept)
    if tokens > budget:
        raise CoachError(
            f"of the evidence {tokens:.0f} tokens are never cut; there is room for {budget:.0f}: raise the coach's "
            "option budget"
        )
    return tuple(kept)


def _shorten(
    exhibits: list[RenderedExhibit], kind: ExhibitKind, budget: float, min_tokens: float = 0.0
) -> list[RenderedExhibit]:
    """Cut the texts of one kind in the middle, the longest first, until all exhibits fit or these have come down to
    `min_tokens` or to MIN_CHARACTERS."""
    sizes = {
        index: rendered.tokens
        for index, rendered in enumerate(exhibits)
        if rendered.exhibit.kind == kind and rendered.lines
    }
    if total_tokens(exhibits) <= budget or not sizes:
        return exhibits
    others = total_tokens(exhibits) - sum(sizes.values())
    level = _max_size(list(sizes.values()), budget - others)
    kept = list(exhibits)
    # The token density of a text varies: the rest of a cut text may have more tokens than its share.
    for _ in range(MAX_SHORTENING_ROUNDS):
        level = max(level, min_tokens)
        for index, tokens in sizes.items():
            if tokens > level:
                length = _length(exhibits[index].lines or "")
                kept[index] = render_exhibit(exhibits[index].exhibit, max(MIN_CHARACTERS, int(length * level / tokens)))
        if total_tokens(kept) <= budget:
            break
        # Lowered by as much as these are over, and a little more, as proportions never quite get there.
        level *= 0.97 * max(0.0, budget - others) / (total_tokens(kept) - others)
    return kept


def _max_size(sizes: Sequence[float], room: float) -> float:
    """The size to which the largest of `sizes` must be cut so that all fit into `room`."""
    # The smallest, as long as all that are left could be as large as it, stay whole; the others share the rest.
    left = sorted(sizes)
    while left and left[0] * len(left) <= room:
        room -= left.pop(0)
    return max(room, 0.0) / len(left) if left else max(sizes)


def _drop(exhibits: list[RenderedExhibit], kind: ExhibitKind, budget: float) -> list[RenderedExhibit]:
    """Leave out exhibits of one kind until all fit: in order, later actions from the end."""
    excess = total_tokens(exhibits) - budget
    by_name = groupby(exhibits, key=lambda rendered: (rendered.exhibit.kind, rendered.exhibit.name))
    groups = [list(group) for _, group in by_name]
    indices = [index for index, group in enumerate(groups) if group[0].exhibit.kind == kind]
    last_dropped = None
    for index in reversed(indices) if kind == "later" else indices:
        if excess <= 0:
            break
        placeholder = _placeholder(groups[index][0].exhibit)
        # Adjacent placeholders become one, which names the first and the last: so the first of a run costs two names
        # and the others cost nothing.
        is_adjacent = last_dropped in (index - 1, index + 1)
        cost = 0 if is_adjacent else 2 * placeholder.tokens
        excess -= total_tokens(groups[index]) - cost
        groups[index] = [placeholder]
        last_dropped = index
    return list(_merge_placeholders(list(chain.from_iterable(groups))))


def _placeholder(exhibit: Exhibit) -> RenderedExhibit:
    titled = replace(exhibit, title=f"[left out: {exhibit.name}]", data=None)
    return replace(render_exhibit(titled, MIN_CHARACTERS), cut=True)


def _merge_placeholders(exhibits: Sequence[RenderedExhibit]) -> Iterator[RenderedExhibit]:
    def kind_of_run(rendered: RenderedExhibit) -> tuple[bool, ExhibitKind]:
        is_placeholder = rendered.cut and rendered.lines is None
        return is_placeholder, rendered.exhibit.kind

    for (is_placeholder, _), group in groupby(exhibits, key=kind_of_run):
        run = list(group)
        if not is_placeholder or len(run) == 1:
            yield from run
            continue
        first, last = run[0].exhibit, run[-1].exhibit
        yield _placeholder(replace(first, name=f"{first.name} to {last.name}"))
