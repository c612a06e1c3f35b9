r"""Decides whether an answer equals a reference, as a whole.

Numbers, tuples, intervals, sets and lists of them are compared here, exactly; a callable decides what needs algebra.
Two texts are equal where

- they are spelled the same;
- they are the same number: `142.0` and `142`, `023` and `23`, `\frac12` and `0.5`, never `0.333333` and `\frac13`;
- one carries a unit and the other none (`50\%` is 50 and 0.5), or both the same unit;
- they are tuples or intervals with equal parts in order, or sets or lists with equal parts in any order;
- algebra says so.

A name on the left is dropped (`x = 5`, `m+n = 142`), an unsolved equation (`2x = 60`) is no answer, and a box that
holds the right number among others (`1 or 60`, `60, 61`, `\pm 60`) is wrong. `or` makes a list (of inequalities, a
union) as a comma does; a reference `080 or 081 (both were accepted)` accepts either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from mappa_mathchat.latex import OR, normalize_spelling, parse_number, split_unit, to_expression

AlgebraCheck = Callable[[str, str], bool]
"""Whether two LaTeX expressions, as returned by `latex.to_expression`, are equal."""

MAX_CHARACTERS = 1000
"""Longest text that is parsed; a longer one equals only the identical text."""
MAX_PARTS = 32
MAX_DEPTH = 20

_ACCEPTED = re.compile(r"\s+\((?=[^()]*\baccept)(?![^()]*\bnot\b)[A-Za-z ,.]*\)\s*$")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|neq?)(?![A-Za-z])")
_LONG_NAME = re.compile(r"\\(?:angle|triangle) ?[A-Z]{1,4}|\\text\{[A-Za-z ]+\}|(?<![\\A-Za-z])[A-Za-z]{4,}")
_INDEX = re.compile(r"_(?:\{[^{}]*\}|\w)|(?<=[A-Za-z])'*\([^()]*\)|'")
_UNKNOWN = re.compile(r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega)(?![A-Za-z])|(?<![\\A-Za-z])[A-Za-z]+")
_NAMES = re.compile(r"\((?:\\?[A-Za-z]+,)+\\?[A-Za-z]+\)")
_LETTERS = re.compile("[A-Za-z ]{2,}")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")
"""One that is no part of a command."""
_EQUALS = re.compile(r"(?<![<>!\\])=")


def answers_equal(answer: str, reference: str, algebra: AlgebraCheck) -> bool:
    """Whether `answer` equals `reference`. Raises what `algebra` raises, nothing else."""
    answer, reference = answer.strip(), reference.strip()
    if not answer:
        return False
    if answer == reference:
        return True
    if any(len(text) > MAX_CHARACTERS or _depth(text) > MAX_DEPTH for text in (answer, reference)):
        return False
    given, true = normalize_spelling(answer), normalize_spelling(_ACCEPTED.sub("", reference))
    accepted = _split(true, OR) if _ACCEPTED.search(reference) else [true]
    return any(_same_answer(given, one, algebra) for one in accepted)


def canonical_spelling(answer: str) -> str:
    """Return one text for all spellings of a number (`023`, `23.0`), and for the layouts of any other answer."""
    if len(answer) > MAX_CHARACTERS or _depth(answer) > MAX_DEPTH:
        return answer
    text = normalize_spelling(answer)
    value = parse_number(text)
    return _normalize_words(text) if value is None else str(value)


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _same_answer(answer: str, reference: str, algebra: AlgebraCheck) -> bool:
    answer, reference = _drop_names(answer, reference)
    given_words, true_words = _normalize_words(answer), _normalize_words(reference)
    if given_words == true_words:
        return True
    if _LETTERS.fullmatch(given_words) and _LETTERS.fullmatch(true_words):  # `on` is not `no`, as a product would be
        return False
    related = _RELATION.search(answer) or _RELATION.search(reference)
    if (related or r"\cup" in answer + reference) and OR in answer + reference:
        return _same_parts(_union(answer), _union(reference), algebra)
    if related:
        return _equal_by_algebra(answer, reference, algebra)
    given, true = _structure(answer), _structure(reference)
    if given is None and true is None:
        return _same_value(answer, reference, algebra)
    if given is None or true is None or given[0] != true[0]:
        return False
    return _same_parts(given, true, algebra)


def _drop_names(answer: str, reference: str) -> tuple[str, str]:
    """Remove what names a tuple, an interval, a set or a list (`S=`, `(x,y)=`), except where the names differ."""
    (name, given), (true_name, true) = _split_name(answer), _split_name(reference)
    return (answer, reference) if name and true_name and name != true_name else (given, true)


def _split_name(text: str) -> tuple[str, str]:
    """Split `P=(1,2)` into name and structure; the name is empty where there is none."""
    sides = _EQUALS.split(text)
    if len(sides) != 2 or _structure(sides[1]) is None:
        return "", text
    names = sides[0][1:-1].replace("\\", "").split(",") if _NAMES.fullmatch(sides[0]) else []
    named = names == sorted(names) if names else _is_name(sides[0])
    return (sides[0], sides[1]) if named else ("", text)


def _normalize_words(text: str) -> str:
    """Unwrap `\\text{}` and the letter of a choice; fold the case of a text that is words alone."""
    plain = re.sub(r"\\text\{([^{}]*)\}", lambda match: match[1].strip(), text)
    plain = re.sub(r"^\(([A-Z])\)$", r"\1", plain)
    return plain.casefold() if re.fullmatch(r"[A-Za-z .'-]{2,}", plain) else plain


# --- tuples, intervals, sets, lists ---------------------------------------------------------------------------------

Structure = tuple[str, list[str]]


def _structure(text: str) -> Structure | None:
    """Split a text into kind and parts; None for a single value. The kind is `any order`, `union`, or the brackets."""
    if parse_number(split_unit(text)[0]) is not None:
        return None
    if r"\cup" in text:
        return _union(text)
    if r"\pm" in text:
        return "any order", [text.replace(r"\pm", sign).removeprefix("+") for sign in "+-"]
    alternatives = _split(text, OR)
    parts = _split(text, ",") if len(alternatives) == 1 else [part for one in alternatives for part in _listed(one)]
    if len(parts) > 1:
        return "any order", parts
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inner = _split(text[2:-2], ",")
        return _structure(inner[0]) if len(inner) == 1 else ("any order", inner)
    if text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        inner = _split(text[1:-1], ",")
        brackets = text[0] + text[-1]
        if len(inner) > 1 or brackets != "()":
            return brackets, inner
    return None


def _union(text: str) -> Structure:
    return "union", _split(text, OR if OR in text else r"\cup")


def _listed(text: str) -> list[str]:
    return [text] if parse_number(text) is not None else _split(text, ",")


def _split(text: str, separator: str) -> list[str]:
    """Split `text` at every separator outside brackets; not at all where its brackets do not match."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return [text]
        if depth == 0 and text.startswith(separator, position):
            parts.append(text[start:position].strip())
            start = position = position + len(separator)
        else:
            position += 1
    return [text] if depth else [*parts, text[start:].strip()]


def _same_parts(given: Structure, true: Structure, algebra: AlgebraCheck) -> bool:
    (kind, answers), (_, references) = given, true
    if len(answers) != len(references) or len(answers) > MAX_PARTS or not all(answers):
        return False
    if kind not in ("any order", "union"):
        return all(_same_answer(*pair, algebra) for pair in zip(answers, references, strict=True))
    left = list(references)
    if algebra is not _refuse:  # most parts are the same without algebra, and the time that it has is short
        for answer in list(answers):
            same = next((one for one in left if _same_answer(answer, one, _refuse)), None)
            if same is not None:
                left.remove(same)
                answers.remove(answer)
    for answer in answers:
        match = next((one for one in left if _same_answer(answer, one, algebra)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _refuse(_answer: str, _reference: str) -> bool:
    return False


# --- one value ------------------------------------------------------------------------------------------------------


def _same_value(answer: str, reference: str, algebra: AlgebraCheck) -> bool:
    given, true = _EQUALS.split(answer), _EQUALS.split(reference)
    if len(true) > 1:
        if len(given) > 1:
            return _equal_by_algebra(answer, reference, algebra)
        return len(true) == 2 and _is_name(true[0]) and _same_scalar(answer, true[1], algebra)
    if len(given) > 1 and _is_name(given[0]):
        given = given[1:]
    elif len(given) > 1 and _LETTER.search(given[0]):
        return False
    return all(_same_scalar(part, reference, algebra) for part in given)


def _is_name(head: str) -> bool:
    """Whether the left side names a quantity (`x`, `m+n`, `f(2)`), and is no term to solve (`2x`, `-x`) and no
    negation."""
    if head.startswith("-") or re.search(r"(?<![A-Za-z])(?:not|or|and)(?![A-Za-z])", head):
        return False
    named = _INDEX.sub("", _LONG_NAME.sub("Q", head))
    unknowns = set(_UNKNOWN.findall(named))
    return to_expression(named) is not None and bool(unknowns) and (len(unknowns) > 1 or not re.search("[0-9]", named))


def _same_scalar(answer: str, reference: str, algebra: AlgebraCheck) -> bool:
    (given, given_unit), (true, true_unit) = split_unit(_ungroup(answer)), split_unit(_ungroup(reference))
    if given_unit and true_unit and given_unit != true_unit:
        return False
    left, right = parse_number(given), parse_number(true)
    if left is None or right is None:
        return _equal_by_algebra(given, true, algebra)
    percents = (given_unit, true_unit).count("percent")
    return left == right or (percents == 1 and _ratio_is_hundred(left, right, given_unit == "percent"))


def _ratio_is_hundred(answer: Fraction, reference: Fraction, answer_is_percent: bool) -> bool:
    return answer == 100 * reference if answer_is_percent else 100 * answer == reference


def _ungroup(text: str) -> str:
    """Remove parentheses around the whole text, or the braces of a set of one."""
    for opening, closing in (("(", ")"), (r"\{", r"\}")):
        inner = text.removeprefix(opening).removesuffix(closing)
        if len(text) - len(inner) == len(opening + closing) and len(_split(inner + ",", ",")) == 2:
            return _ungroup(inner)
    return text


def _equal_by_algebra(answer: str, reference: str, algebra: AlgebraCheck) -> bool:
    given, true = to_expression(answer), to_expression(reference)
    if given is None or true is None:
        return False
    return given == true or algebra(given, true)
