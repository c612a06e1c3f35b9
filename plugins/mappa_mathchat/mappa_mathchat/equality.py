r"""Decides whether an answer equals a reference, as a whole.

Numbers, tuples, intervals, sets and lists of them are compared here, exactly; a callable decides what needs algebra.
Two texts are equal where

- they are spelled the same;
- they are the same number: `142.0` and `142`, `023` and `23`, `\frac12` and `0.5`, never `0.333333` and `\frac13`;
- one carries a unit and the other none (`50\%` is 50 and 0.5), or both the same unit;
- they are tuples or intervals with equal parts in order, or sets or lists with equal parts in any order;
- algebra says so.

A name on the left of an answer is dropped (`x = 5`, `m+n = 142`), an unsolved equation (`2x = 60`) is no answer, and a
box that holds the right number among others (`1 or 60`, `60, 61`, `\pm 60`) is wrong. A reference is met by its right
side alone only where its left side is one quantity (`x = 5`, `f(2) = 5`, `AB = 5`, `a:b = 3:4`): an equation between
several unknowns (`x+y = 5`, `y = 2x+1`) has to be given as an equation. `or` and `;` make a list (of inequalities, a
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
_LETTERS = re.compile("[A-Za-z ]{2,}")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")
"""One that is no part of a command."""
_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega)"
    r"(?![A-Za-z])"
)
_UNKNOWN = re.compile(rf"{_GREEK}|(?<![\\A-Za-z])[A-Za-z]+")
_KNOWN = frozenset({"e", "i", "pi", "sin", "cos", "tan", "log", "ln", "exp", "sqrt", "matrix", "pmatrix", "vmatrix"})
_NAMES = re.compile(r"\((?:\\?[A-Za-z]+,)+\\?[A-Za-z]+\)")

_LONG_NAME = re.compile(
    r"\\(?:angle|triangle) ?[A-Z]{1,4}|\\overline\{[A-Z]+\}|\\text\{[A-Za-z ]+\}|(?<![\\A-Za-z])[A-Za-z]{4,}"
)
_ONE_INDEX = r"_(?:\{[^{}]*\}|\w)"
_INDEX = re.compile(rf"{_ONE_INDEX}|(?<=[A-Za-z])'*\([^()]*\)|'")
_VARIABLE = re.compile(rf"[a-z]|{_GREEK}")
_TERM = re.compile(rf"(?:[a-z]|{_GREEK})(?P<index>{_ONE_INDEX})'*")
"""A term of a sequence, or one of several roots."""
_FUNCTION = re.compile(
    rf"[fghFGHPE]'*(?:{_ONE_INDEX}|\^\{{-1\}})?'*\([^()]*\)"
    rf"|(?:[p-suvwA-Z]|{_GREEK})'*(?:{_ONE_INDEX})?\((?:-?[0-9]+|[A-Za-z])(?:,(?:-?[0-9]+|[A-Za-z]))*\)"
)
"""A value of a function. With other letters or arguments it may be a product: `x(x+1)`."""
_MEASURED = re.compile(
    rf"(?:\\(?:sin|cos|tan) ?)?m?\\(?:angle|triangle) ?[A-Z]{{1,4}}"
    rf"|(?P<bar>\|?)(?:\\overline\{{[A-Z]+\}}|[A-Z]{{1,4}})(?:{_ONE_INDEX})?'*(?P=bar)"
    r"|\\text\{[A-Za-z ]+\}|[A-Z][a-z]{2,}"
)
"""What has a length, an area, a size or a name in words: `AB`, `S_{ABC}`, `\\angle ABC`, `Area`."""
_FRACTION_OF_NAMES = re.compile(
    r"\\frac\{((?:[^{}]|\{[^{}]*\})*)\}\{((?:[^{}]|\{[^{}]*\})*)\}|((?:[^/{}]|\{[^{}]*\})+)/((?:[^/{}]|\{[^{}]*\})+)"
)


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
    return any(_same_answer(given, alternative, algebra) for alternative in accepted)


def drop_alternatives(text: str) -> str:
    """Return a text of an agent without the note by which a reference accepts several answers."""
    return _ACCEPTED.sub("", text)


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
    given_words, true_words = _normalize_words(answer), _normalize_words(reference)
    if given_words == true_words:
        return True
    if _LETTERS.fullmatch(given_words) and _LETTERS.fullmatch(true_words):  # `on` is not `no`, as a product would be
        return False
    answer, reference = _drop_names(_ungroup(answer), _ungroup(reference))
    if r"\cup" in answer + reference:  # `or` between intervals joins them, between pairs it lists them
        answer, reference = (side.replace(OR, r"\cup") for side in (answer, reference))
    given, true = _structure(answer), _structure(reference)
    if given and true:
        return _same_structure(given, true, algebra)
    if _RELATION.search(answer + reference):
        return _equal_by_algebra(answer, reference, algebra)
    return not given and not true and _same_value(answer, reference, algebra)


def _normalize_words(text: str) -> str:
    """Unwrap `\\text{}` and the letter of a choice; fold the case of a text that is words alone."""
    plain = re.sub(r"\\text\{([^{}]*)\}", lambda match: match[1].strip(), text)
    plain = re.sub(r"^\(([A-Z])\)$", r"\1", plain)
    return plain.casefold() if re.fullmatch(r"[A-Za-z .'-]{2,}", plain) else plain


def _ungroup(text: str) -> str:
    """Remove parentheses around the whole text, or the braces of a set of one."""
    for opening, closing in (("(", ")"), (r"\{", r"\}")):
        if _encloses(text, opening, closing):
            inner = text.removeprefix(opening).removesuffix(closing)
            if len(_split(inner, ",")) == len(_split(inner, ";")) == 1:
                return _ungroup(inner.strip())
    return text


def _encloses(text: str, opening: str, closing: str) -> bool:
    if not (text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing)):
        return False
    inner = text[len(opening) : -len(closing)]
    return len(_split(f"{inner},", ",")) > 1 or inner == ""


def _drop_names(answer: str, reference: str) -> tuple[str, str]:
    """Remove what names a tuple, an interval or a set (`S=`, `(x,y)=`), except where the names differ."""
    (name, given), (true_name, true) = _split_name(answer), _split_name(reference)
    return (answer, reference) if name and true_name and name != true_name else (given, true)


def _split_name(text: str) -> tuple[str, str]:
    """Split `P=(1,2)` into name and structure; the name is empty where there is none."""
    sides = _split(text, "=")
    if len(sides) != 2 or _structure(sides[1]) is None:
        return "", text
    names = sides[0][1:-1].replace("\\", "").split(",") if _NAMES.fullmatch(sides[0]) else []
    named = names == sorted(names) if names else _is_name(sides[0])
    return (sides[0], sides[1]) if named else ("", text)


# --- tuples, intervals, sets, lists ---------------------------------------------------------------------------------

Structure = tuple[str, list[str]]
"""The kind (`list`, `union`, or the brackets) and the parts."""


def _structure(text: str) -> Structure | None:
    """Split a text into kind and parts; None for a single value."""
    if parse_number(split_unit(text)[0]) is not None:
        return None
    if r"\cup" in text or (OR in text and _RELATION.search(text)):
        joined = _split(text, OR if OR in text else r"\cup")
        return ("union", joined) if len(joined) > 1 else None
    if _encloses(text, r"\{", r"\}"):
        inner = _list_parts(text[2:-2])
        return _structure(inner[0]) if len(inner) == 1 else ("list", inner)
    parts = _list_parts(text)
    if len(parts) > 1:
        return "list", parts
    if text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        inner = _split(text[1:-1], ",")
        inner = _split(inner[0], ";") if len(inner) == 1 else inner
        brackets = text[0] + text[-1]
        if len(inner) > 1 or brackets != "()":
            return brackets, inner
    return None


def _list_parts(text: str) -> list[str]:
    """Split a list at `or`, at `;` and at commas, `\\pm` into two values; values that belong together stay together
    (`p=5,q=2;p=7,q=2` has two parts)."""
    parts: list[str] = []
    choices = _split(text, OR)
    for choice in choices:
        groups = _split(choice, ";")
        if len(groups) == 1 and parse_number(choice) is None:
            groups = _group_by_name(_split(choice, ","), alone=len(choices) == 1)
        parts += groups
    return [signed for part in parts for signed in _both_signs(part)]


def _group_by_name(parts: list[str], *, alone: bool) -> list[str]:
    """Join values of several names: `x=1,y=1,x=2,y=2` are the two groups `x=1,y=1` and `x=2,y=2`."""
    sides = [_split(part, "=") for part in parts]
    names = [pair[0] for pair in sides]
    size = len(set(names))
    named = size > 1 and all(len(pair) == 2 and _is_name(pair[0]) for pair in sides)
    if not named or names != names[:size] * (len(names) // size) or (alone and size == len(names)):
        return parts
    return [",".join(parts[start : start + size]) for start in range(0, len(parts), size)]


def _both_signs(text: str) -> list[str]:
    if r"\pm" not in text or len(_split(text, ",")) > 1:
        return [text]
    signs = (("+", "-"), ("-", "+"))
    return [re.sub(r"(^|=)\+", r"\1", text.replace(r"\pm", upper).replace(r"\mp", lower)) for upper, lower in signs]


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


def _same_structure(given: Structure, true: Structure, algebra: AlgebraCheck) -> bool:
    if {given[0], true[0]} == {"list", "()"}:  # `x=5,y=2` is the pair (5,2)
        pair = [_tuple_of_names(side) if side[0] == "list" else side for side in (given, true)]
        return pair[0] is not None and pair[1] is not None and _same_structure(pair[0], pair[1], algebra)
    (kind, answers), (true_kind, references) = given, true
    if kind != true_kind or len(answers) != len(references) or len(answers) > MAX_PARTS or not all(answers):
        return False
    if kind not in ("list", "union") or _order_matters(answers, references):
        return all(_same_answer(*pair, algebra) for pair in zip(answers, references, strict=True))
    return _same_in_any_order(answers, references, algebra)


def _tuple_of_names(structure: Structure) -> Structure | None:
    """Return `x=5,y=2` as the tuple (5,2); None where the names are not different and in alphabetical order."""
    sides = [_split(part, "=") for part in structure[1]]
    names = [pair[0] for pair in sides]
    named = names == sorted(set(names)) and all(len(pair) == 2 and _is_quantity(*pair) for pair in sides)
    return ("()", [pair[1] for pair in sides]) if named else None


def _order_matters(answers: list[str], references: list[str]) -> bool:
    """Whether values without names are compared with quantities that each have a name of their own: `4,5` with
    `AB=4,CD=5`, and not with the roots `x_1=4,x_2=5`."""
    sides = [_split(part, "=") for part in references]
    names = sorted({_plain_name(pair[0]) for pair in sides if len(pair) == 2})
    roots = [f"{names[0][:1]}_{number}" for number in range(1, len(names) + 1)] if names else []
    return len(names) == len(references) and names != roots and all(len(_split(part, "=")) == 1 for part in answers)


def _same_in_any_order(answers: list[str], references: list[str], algebra: AlgebraCheck) -> bool:
    answers, left = list(answers), list(references)
    if algebra is not _refuse:  # most parts are the same without algebra, and the time that it has is short
        for answer in list(answers):
            same = next((part for part in left if _same_answer(answer, part, _refuse)), None)
            if same is not None:
                left.remove(same)
                answers.remove(answer)
    for answer in answers:
        match = next((part for part in left if _same_answer(answer, part, algebra)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _refuse(_answer: str, _reference: str) -> bool:
    return False


# --- names and equations --------------------------------------------------------------------------------------------


def _same_value(answer: str, reference: str, algebra: AlgebraCheck) -> bool:
    given, true = _sides(answer), _sides(reference)
    if len(true) > 1 and len(given) > 1:
        return _same_equation(given, true, algebra)
    if len(true) > 1:  # a value alone must leave no unknown of the reference free
        return _is_quantity(true[0], true[-1]) and all(_same_scalar(answer, part, algebra) for part in true[1:])
    if len(given) > 1 and _is_name(given[0]):
        given = given[1:]
    elif len(given) > 1 and _LETTER.search(given[0]):
        return False
    return all(_same_scalar(part, reference, algebra) for part in given)


def _sides(text: str) -> list[str]:
    """Split an equation at its signs; what has a value comes first (`5=x` is `x=5`)."""
    sides = _split(text, "=")
    return sides[::-1] if len(sides) == 2 and _unknowns(sides[1]) and _is_quantity(sides[1], sides[0]) else sides


def _same_equation(given: list[str], true: list[str], algebra: AlgebraCheck) -> bool:
    solved = [_is_quantity(sides[0], sides[-1]) for sides in (given, true)]
    if all(solved):
        pairs = [(part, side) for part in given[1:] for side in true[1:]]
        return _same_name(given[0], true[0]) and all(_same_scalar(*pair, algebra) for pair in pairs)
    if any(solved) and not all(_unknowns(sides[-1]) for sides in (given, true)):
        return False
    return len(given) == len(true) == 2 and _equal_by_algebra("=".join(given), "=".join(true), algebra)


def _same_name(name: str, true_name: str) -> bool:
    """Whether both name one thing: the same, or one of the roots that the other numbers (`x` and `x_1`)."""
    plain, true = _plain_name(name), _plain_name(true_name)
    return plain == true or re.sub(r"_\d+$", "", plain) == true or re.sub(r"_\d+$", "", true) == plain


def _plain_name(name: str) -> str:
    """Return a name without the braces of an index: `a_{1}` is `a_1`."""
    return re.sub(r"_\{(\w+)\}", r"_\1", name)


def _is_name(head: str) -> bool:
    """Whether the left side of an answer names what was asked for (`x`, `m+n`, `f(2)`), and is no term to solve (`2x`,
    `-x`) and no negation."""
    if head.startswith("-") or re.search(r"(?<![A-Za-z])(?:not|or|and)(?![A-Za-z])", head):
        return False
    ratio = _split(head, ":")
    if len(ratio) > 1:
        return all(map(_is_name, ratio))
    named = _INDEX.sub("", _LONG_NAME.sub("Q", head))
    unknowns = set(_UNKNOWN.findall(named))
    return to_expression(named) is not None and bool(unknowns) and (len(unknowns) > 1 or not re.search("[0-9]", named))


def _is_quantity(head: str, value: str) -> bool:
    """Whether `head = value` says what one quantity is, so that the value alone says as much: a variable, a term, a
    value of a function, a length, a ratio. An equation between several unknowns does not."""
    ratio = _split(head, ":")
    if len(ratio) > 1:
        named = all(_VARIABLE.fullmatch(name) or _MEASURED.fullmatch(name) for name in ratio)
        return named and len(ratio) in (2, len(_split(value, ":")))
    free = _unknowns(value)
    if _VARIABLE.fullmatch(head) or not _unknowns(head):
        return not free and parse_number(head) is None
    if term := _TERM.fullmatch(head):
        return free <= _unknowns(term["index"][1:])
    if _FUNCTION.fullmatch(head):
        return head[0] not in free
    fraction = _FRACTION_OF_NAMES.fullmatch(head)
    names = [name for name in fraction.groups() if name] if fraction else [head]
    # `A` is a quantity, and A/B a relation between two
    measured = all(map(_MEASURED.fullmatch, names)) and max(map(len, names)) >= len(names)
    return measured and not any(map(str.isupper, free))


def _unknowns(text: str) -> set[str]:
    words_removed = re.sub(r"\\text\{[^{}]*\}", "", split_unit(text)[0])
    return set(_UNKNOWN.findall(words_removed)) - _KNOWN


# --- one value ------------------------------------------------------------------------------------------------------


def _same_scalar(answer: str, reference: str, algebra: AlgebraCheck) -> bool:
    (given, given_unit), (true, true_unit) = split_unit(_ungroup(answer)), split_unit(_ungroup(reference))
    if given_unit and true_unit and given_unit != true_unit:
        return False
    left, right = parse_number(given), parse_number(true)
    if left is None or right is None:
        return given == true or _equal_by_algebra(given, true, algebra)
    percents = (given_unit, true_unit).count("percent")
    return left == right or (percents == 1 and _ratio_is_hundred(left, right, given_unit == "percent"))


def _ratio_is_hundred(answer: Fraction, reference: Fraction, answer_is_percent: bool) -> bool:
    return answer == 100 * reference if answer_is_percent else 100 * answer == reference


def _equal_by_algebra(answer: str, reference: str, algebra: AlgebraCheck) -> bool:
    given, true = to_expression(answer), to_expression(reference)
    if given is None or true is None:
        return False
    return given == true or algebra(given, true)
