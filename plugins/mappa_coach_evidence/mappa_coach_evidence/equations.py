"""Equations that stand in a text, computed again: chains, fractions, percentages, units, LaTeX.

What cannot be read for certain is no equation: variables, mixed units, several magnitudes, what a text calls wrong
itself. So a wrong equation that is found here is wrong, and not all that are wrong are found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from mappa_coach_evidence.text import word_set

MAX_EQUATION_TOKENS = 120
"""Longer ones are left alone, so that the time to read a text grows with its length."""
_MAX_POWER = 64
_ROUNDED = 0.02  # Share by which a result that a text calls approximate may be off.
_CARRIED = 0.005  # The same where it was computed from rounded values, which the text does not show in full.

_LATEX = (
    (re.compile(r"\\[dt]?frac *\{([^{}]*)\} *\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt *\{([^{}]*)\}"), r"√(\1)"),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf|boxed|operatorname) *\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:times|cdot|ast)\b"), "*"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(r"\\(?:approx|simeq)\b"), "≈"),
    (re.compile(r"\\(?:left|right|,|;|!|displaystyle)"), ""),
    (re.compile(r"\\(?:\(|\)|\[|\]|quad|qquad)"), " "),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\^ *\{ *(-?\d+) *\}"), r"^\1"),
)
_SPOKEN_EQUALS = re.compile(
    r"(?<=[\d)%])(?:,? which)? +(?:is|equals|gives|makes|comes to|is equal to|totals|yields)"
    r"(?: a total of)? +(?=[$€£]?-?\d)"
)
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})
_RAISED = re.compile(r"([²³])")
_TOKEN = re.compile(
    r"(?P<date>\d{4}-\d\d?-\d\d?|\d+:\d\d)"
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<compare>==|!=|:=|=>|<=|>=|->|≠|≡|<|>|≤|≥)"
    r"|(?P<equals>=|≈)"
    r"|(?P<sign>\*\*|[-+*/^()√])"
    r"|(?P<percent>%)"
    r"|(?P<money>[$€£¥])"
    r"|(?P<word>[^\W\d_]+(?:'[^\W\d_]+)?)"
    r"|(?P<end>\n|;|,|[.?!](?=\s|$)|[:\"“”](?!\d))"
    r"|(?P<space>[ \t]+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_SPOKEN_SIGNS: Mapping[str, str] = {"plus": "+", "minus": "-", "times": "*", "x": "*", "X": "*"}
_RESERVATIONS = word_set(
    "not wrong incorrect incorrectly error mistake mistakenly instead should claimed claims claim stated states if "
    "suppose supposing assume assuming let unless mod pmod bmod modulo remainder base hypothetically need needs must "
    "whether satisfy satisfies try trying guess false contradiction impossible"
)
"""Words of a sentence that may quote an equation, or make it a condition, without saying that it holds."""
_APPROXIMATE = word_set("approximately about roughly around nearly almost approx rounded rounding round ~ ≈")
_MAGNITUDES = word_set(
    "dozen dozens hundred thousand million billion trillion k m b mn bn half halves third thirds quarter quarters "
    "double twice triple choose pi e i"
)
_FUNCTIONS = word_set(
    "sin cos tan cot sec csc arcsin arccos arctan log ln lg exp sqrt root lim max min gcd lcm det abs floor ceil sum "
    "prod square cube factorial"
)
"""Words that an expression may be the argument of."""
_AFTERTHOUGHT = 60  # Characters behind an equation in which a text may take it back.
_UNITS = {
    word: family
    for family, words in {
        "time": "sec second seconds min mins minute minutes hr hrs hour hours day days week weeks month months year "
        "years decade decades",
        "length": "mm cm km inch inches ft foot feet yard yards mile miles",
        "weight": "mg kg gram grams kilogram kilograms lb lbs pound pounds oz ounce ounces ton tons",
        "volume": "ml liter liters litre litres cup cups pint pints quart quarts gallon gallons",
        "money": "cent cents penny pennies nickel nickels dime dimes quarter quarters dollar dollars euro euros pence",
        "area": "acre acres hectare hectares",
    }.items()
    for word in words.split()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """The `text` of an equation, the `value` of its left side, the one that is `claimed`, and whether they agree as
    exactly as they are written."""

    text: str
    value: float
    claimed: float
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A side of an equation: its value, whether it has an operator, decimals as written if it is a bare number, its
    numbers as written, and what makes its value less exact or of another scale. `is_whole`: nothing else, not even a
    unit, stands on that side; `in_brackets`: all of it stands in one pair of brackets."""

    value: float
    computed: bool
    decimals: int
    first: float
    start: int
    end: int
    operands: frozenset[float]
    is_whole: bool = False
    in_brackets: bool = False
    divides: bool = False
    rounded: bool = False
    percent: bool = False
    units: frozenset[str] = field(default_factory=frozenset)

    @property
    def inexact(self) -> bool:
        return self.divides or self.rounded


class _UnreadableError(Exception):
    """The tokens are no expression that can be computed for certain."""


def wrong_equations(text: str) -> Iterator[Equation]:
    """The equations of a text that do not hold, in order."""
    return (equation for equation in equations(text) if not equation.holds)


def equations(text: str) -> Iterator[Equation]:
    """The equations of a text that can be computed for certain, in order."""
    plain = _plain(text)
    for sentence in _sentences(plain):
        words = {token.text.lower() for token in sentence if token.kind == "word"}
        if words & _RESERVATIONS:
            continue
        approximate = bool(words & _APPROXIMATE) or any(token.text in _APPROXIMATE for token in sentence)
        for left, right in _pairs(sentence):
            behind = plain[right.end : right.end + _AFTERTHOUGHT].lower()
            if not _RESERVATIONS.isdisjoint(re.findall(r"[a-z]+", behind.partition("\n")[0])):
                continue
            yield Equation(
                text=" ".join(plain[left.start : right.end].split()),
                value=left.value,
                claimed=right.value,
                holds=_agree(left, right, approximate=approximate),
            )


def _plain(text: str) -> str:
    # Innermost braces first, as many times as fractions are nested.
    for _ in range(3):
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
    text = _BOLD.sub(r"\1", text).translate(_SIGNS)
    text = _SPOKEN_EQUALS.sub(" = ", text)
    return _RAISED.sub(lambda found: f"^{'23'['²³'.index(found[1])]}", text)


def _sentences(text: str) -> Iterator[list[_Token]]:
    """Tokens between ends of sentences and clauses, those with an equation."""
    tokens: list[_Token] = []
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or "other"
        if kind == "end":
            yield from _with_equation(tokens)
            tokens = []
        else:
            tokens.append(_Token(kind=kind, text=found[0], start=found.start(), end=found.end()))
    yield from _with_equation(tokens)


def _with_equation(tokens: list[_Token]) -> Iterator[list[_Token]]:
    if any(token.kind == "equals" for token in tokens):
        yield tokens


def _pairs(tokens: Sequence[_Token]) -> Iterator[tuple[_Side, _Side]]:
    """Neighbouring sides of the equations of a sentence that can both be computed."""
    places = [number for number, token in enumerate(tokens) if token.kind == "equals"]
    parts = [tokens[start + 1 : end] for start, end in pairwise([-1, *places, len(tokens)])]
    for left, right in pairwise(parts):
        if len(left) > MAX_EQUATION_TOKENS or len(right) > MAX_EQUATION_TOKENS:
            continue
        try:
            sides = _read_end(left), _read_start(right)
        except _UnreadableError:
            continue
        if sides[0].computed or (sides[1].computed and sides[0].is_whole):
            yield sides


def _read_end(tokens: Sequence[_Token]) -> _Side:
    """The longest expression at the end of `tokens`."""
    for start in range(len(tokens)):
        if tokens[start].kind not in ("number", "sign", "money") or not _may_begin(tokens, start):
            continue
        parser = _Parser(tokens[start:])
        try:
            side = parser.side()
        except _UnreadableError:
            continue
        if parser.at_end:
            bare = all(token.kind in ("space", "number", "sign", "percent", "money") for token in tokens)
            return replace(side, is_whole=bare and start == _first_place(tokens))
    raise _UnreadableError


def _first_place(tokens: Sequence[_Token]) -> int:
    """Where the first token stands that is no space and no mark of a list."""
    for place, token in enumerate(tokens):
        if token.kind != "space" and not _is_list_mark(tokens, place):
            return place
    return len(tokens)


def _is_list_mark(tokens: Sequence[_Token], place: int) -> bool:
    """Whether a dash or a star begins a line of a list."""
    spaced = place + 1 < len(tokens) and tokens[place + 1].kind == "space"
    return tokens[place].text in ("-", "*", "+") and spaced and all(before.kind == "space" for before in tokens[:place])


def _may_begin(tokens: Sequence[_Token], start: int) -> bool:
    """Whether an expression may begin at `start`: not in the middle of a longer one."""
    if tokens[start].text in ("*", "/", "^", "**", ")", "+"):
        return False
    before = start - 1
    spaced = before >= 0 and tokens[before].kind == "space"
    if spaced:
        before -= 1
    if before < 0:
        return not _is_list_mark(tokens, start)
    if _is_list_mark(tokens, before):
        return True
    last = tokens[before]
    if tokens[start].text == "-":
        # `revenue - 30`: a sign after a word and before a space takes away from what the word stands for.
        attached = start + 1 < len(tokens) and tokens[start + 1].kind in ("number", "money")
        if not attached or not spaced:
            return False
    if last.kind == "word":
        is_command = before > 0 and tokens[before - 1].text == "\\"
        others = _MAGNITUDES | _FUNCTIONS | {"of", *_SPOKEN_SIGNS}
        return spaced and not is_command and last.text.lower() not in others
    return last.kind in ("compare", "other") and spaced and last.text not in "|!\\_{}"


def _read_start(tokens: Sequence[_Token]) -> _Side:
    """The expression that `tokens` begin with. Raises _UnreadableError if what follows may belong to it."""
    parser = _Parser(tokens)
    side = parser.side()
    parser.check_end()
    return side


class _Parser:
    """Reads one expression: sums of products of powers of atoms, with units in between."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._computed = self._divides = self._rounded = self._percent = False
        self._decimals = 0
        self._units: set[str] = set()
        self._first: float | None = None
        self._operands: set[float] = set()
        self._end = 0

    @property
    def at_end(self) -> bool:
        self._skip_space()
        return self._place == len(self._tokens)

    def side(self) -> _Side:
        self._skip_space()
        if self._place == len(self._tokens):
            raise _UnreadableError
        opening = self._tokens[self._place]
        bracket_ends = self._closing_place() if opening.text == "(" else None
        value = self._sum()
        if not math.isfinite(value):
            raise _UnreadableError
        return _Side(
            value=value,
            computed=self._computed,
            decimals=self._decimals,
            first=value if self._first is None else self._first,
            start=opening.start,
            end=self._end,
            operands=frozenset(self._operands),
            in_brackets=bracket_ends is not None and bracket_ends == self._place,
            divides=self._divides,
            rounded=self._rounded,
            percent=self._percent,
            units=frozenset(self._units),
        )

    def _closing_place(self) -> int | None:
        """The place behind the bracket that closes the one that comes next."""
        depth = 0
        for place in range(self._place, len(self._tokens)):
            depth += (self._tokens[place].text == "(") - (self._tokens[place].text == ")")
            if depth == 0:
                return place + 1
        return None

    def check_end(self) -> None:
        """Raise _UnreadableError unless what follows the expression certainly does not belong to it."""
        spaced = self._skip_space()
        following = self._peek()
        if following is None:
            return
        if following.kind in ("sign", "number", "percent", "date", "money"):
            # `= 12 (as above)` is a remark.
            remark = following.text == "(" and spaced and self._kind_after_bracket() == "word"
            if not remark:
                raise _UnreadableError
        if following.kind == "word" and (
            not spaced or following.text.lower() in _MAGNITUDES or len(following.text) == 1
        ):
            raise _UnreadableError
        if following.kind == "other" and following.text in "!|_^{}\\°'":
            raise _UnreadableError

    def _kind_after_bracket(self) -> str:
        rest = [token for token in self._tokens[self._place + 1 :] if token.kind != "space"]
        return rest[0].kind if rest else ""

    def _peek(self) -> _Token | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _take(self) -> _Token:
        token = self._peek()
        if token is None:
            raise _UnreadableError
        self._place += 1
        if token.kind != "space":
            self._end = token.end
        return token

    def _skip_space(self) -> bool:
        skipped = False
        while (token := self._peek()) is not None and token.kind == "space":
            self._place += 1
            skipped = True
        return skipped

    def _sign(self, wanted: str) -> str | None:
        """Take one of the signs `wanted` if it comes next."""
        place, end = self._place, self._end
        self._skip_space()
        token = self._peek()
        text = None if token is None else _SPOKEN_SIGNS.get(token.text, token.text)
        if token is not None and text in ("**",):
            text = "^"
        if (
            token is not None
            and token.kind in ("sign", "word")
            and text is not None
            and len(text) == 1
            and text in wanted
        ):
            if token.kind == "word" and not self._operand_follows():
                self._place, self._end = place, end
                return None
            self._take()
            return text
        self._place, self._end = place, end
        return None

    def _operand_follows(self) -> bool:
        rest = [token for token in self._tokens[self._place + 1 : self._place + 4] if token.kind != "space"]
        return bool(rest) and (rest[0].kind in ("number", "money") or rest[0].text in ("(", "-"))

    def _sum(self) -> float:
        value = self._product()
        while sign := self._sign("+-"):
            self._note_operator(value)
            other = self._product()
            value = value + other if sign == "+" else value - other
        return value

    def _note_operator(self, before: float) -> None:
        self._computed = True
        if self._first is None:
            self._first = before

    def _product(self) -> float:
        value = self._signed()
        while True:
            if sign := self._sign("*/"):
                self._note_operator(value)
                other = self._signed()
                if sign == "/":
                    if other == 0:
                        raise _UnreadableError
                    self._divides = True
                value = value * other if sign == "*" else value / other
            elif self._implied_product():
                self._note_operator(value)
                value *= self._signed()
            else:
                return value

    def _implied_product(self) -> bool:
        """Whether a bracket follows at once: `2(3 + 4)`."""
        token = self._peek()
        before = self._tokens[self._place - 1]
        return token is not None and token.text == "(" and (before.kind == "number" or before.text == ")")

    def _signed(self) -> float:
        sign = self._sign("-+")
        if sign is not None:
            value = self._signed()
            return -value if sign == "-" else value
        return self._power()

    def _power(self) -> float:
        base = self._atom()
        if self._sign("^") is None:
            return base
        exponent = self._signed()
        if abs(exponent) > _MAX_POWER or abs(base) > 1e9 or (base == 0 and exponent < 0):
            raise _UnreadableError
        self._note_operator(base)
        value = base**exponent
        if isinstance(value, complex):
            raise _UnreadableError
        return float(value)

    def _atom(self) -> float:
        self._skip_space()
        token = self._take()
        if token.kind == "money":
            self._units.add(token.text)
            token = self._take()
            if token.kind != "number":
                raise _UnreadableError
        if token.text == "√":
            value = self._atom()
            if value < 0:
                raise _UnreadableError
            self._computed = self._rounded = True
            return math.sqrt(value)
        if token.text == "(":
            value = self._sum()
            self._skip_space()
            if self._take().text != ")":
                raise _UnreadableError
            return self._with_unit(value)
        if token.kind != "number":
            raise _UnreadableError
        value = float(token.text.replace(",", ""))
        decimals = len(token.text.partition(".")[2])
        self._decimals = decimals
        self._rounded |= decimals > 0
        self._operands.add(value)
        return self._with_unit(self._mixed(value))

    def _mixed(self, whole: float) -> float:
        """`2 1/2`, after the 2."""
        following = self._tokens[self._place : self._place + 4]
        shape = [token.kind for token in following]
        if shape != ["space", "number", "sign", "number"] or following[2].text != "/" or not whole.is_integer():
            return whole
        over, under = float(following[1].text.replace(",", "")), float(following[3].text.replace(",", ""))
        if not 0 < over < under:
            return whole
        self._place += 4
        self._end = following[3].end
        self._computed = self._divides = True
        return whole + over / under

    def _with_unit(self, value: float) -> float:
        """Take what belongs to a value: a percent sign, units, `per night`, `of`."""
        token = self._peek()
        if token is not None and token.kind == "percent":
            self._take()
            self._percent = True
            self._decimals += 2
            value /= 100
        place = self._place
        while True:
            spaced = self._skip_space()
            token = self._peek()
            if token is not None and token.text == "/" and self._word_follows():
                self._place += 1
                continue
            if token is None or token.kind != "word":
                break
            word = token.text.lower()
            if word == "of" and (self._percent or self._divides):
                # `20% of 50`, `1/2 of 50`
                self._take()
                self._note_operator(value)
                return value * self._signed()
            if not spaced and word not in _UNITS and self._tokens[self._place - 1].text != "/":
                raise _UnreadableError  # `2x`
            if token.text in _SPOKEN_SIGNS and self._operand_follows():
                break
            if word in _MAGNITUDES or (len(word) == 1 and word not in _UNITS):
                raise _UnreadableError
            if word in ("percent", "percentage"):
                self._percent = True
                value /= 100
            if word in _UNITS:
                self._units.add(word.removesuffix("s"))
            self._take()
            place = self._place
        self._place = place
        return value

    def _word_follows(self) -> bool:
        following = self._tokens[self._place + 1 : self._place + 3]
        words = [token for token in following if token.kind != "space"]
        return bool(words) and words[0].kind == "word" and len(words[0].text) > 1


def _agree(left: _Side, right: _Side, *, approximate: bool) -> bool:
    """Whether two sides are equal, as exactly as they are written; true where their scales may differ."""
    if len({_UNITS.get(unit, unit) for unit in left.units | right.units}) < len(left.units | right.units):
        return True  # Several units of one kind, as hours and minutes.
    if any(unit in "$€£¥" for unit in left.units ^ right.units) and {"cent", "penny", "pence"} & (
        left.units | right.units
    ):
        return True
    values = [left.value]
    if left.percent or right.percent:
        values += [left.value * 100, left.value / 100]
    goes_on = right.computed and not right.in_brackets and math.isclose(left.value, right.first, rel_tol=1e-9)
    if goes_on and right.operands - left.operands - {abs(left.value)}:
        return True  # `3 * 4 = 12 + 5 = 17`: the work goes on behind the sign, with a number that is new.
    return any(_close(value, left, right, approximate=approximate) for value in values)


def _close(value: float, left: _Side, right: _Side, *, approximate: bool) -> bool:
    unit = 10.0**-right.decimals
    allowed = 1e-9 * max(1.0, abs(value))
    if not right.computed:
        # Half a unit for rounding; nearly a whole one where digits may have been cut off instead.
        cut = right.decimals > 0 or (left.divides and not value.is_integer())
        allowed += (0.98 if cut else 0.5) * unit
    if (right.computed and (left.inexact or right.inexact)) or (left.rounded and left.divides):
        allowed += _CARRIED * abs(value)
    if approximate:
        allowed += _ROUNDED * abs(value) + unit
    return abs(value - right.value) <= allowed
