"""Normalises the LaTeX of answers: one spelling, exact numbers, and expressions that are safe for an algebra system.

All functions are strict: an ambiguous text is neither a number nor an expression.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from mappa_mathchat.units import find_unit

_CHARACTERS = str.maketrans(
    {
        "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ",
        "°": r"^\circ ", "∪": r"\cup ", "≤": r"\le ", "≥": r"\ge ", "±": r"\pm ", "\xa0": " ", "∅": r"\emptyset ",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    }
)  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_THOUSANDS = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+"
OR = r"\lor"
"""How normalised text spells `or`."""
_WORD_BETWEEN = r"(?<=[0-9)}}\]]) ?{}(?= ?(?:[^A-Za-z\s]|[A-Za-z](?![A-Za-z])))"
"""A word without spaces around it, between two values: `3or5`, `x=1orx=2`."""
_QUAD = r"\\q?quad(?![A-Za-z])"
_CURRENCIES = {"€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees"}


def _money(match: re.Match[str]) -> str:
    sign, before, value, other, after = match.groups(default="")
    return rf"{sign}{value}{other}\text{{ {_CURRENCIES[before or after]}}}"


def _matrix(match: re.Match[str], group: int = 2) -> str:
    return rf"\begin{{pmatrix}}{match[group].strip()}\end{{pmatrix}}"


_SPELLINGS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^\s*(\*{1,3}|_{2}|`)(?![*_`\s])(.+?)(?<![*_`\s])\1\s*$", r"\2"),  # Markdown's emphasis
        (r"\*\*\s*(?:\(([^()]*)\)|(-?[0-9A-Za-z]+))", lambda match: f"^{{{match[1] or match[2]}}}"),
        (r"<=|\\leq(?:slant)?(?![A-Za-z])", r"\\le "),
        (r">=|\\geq(?:slant)?(?![A-Za-z])", r"\\ge "),
        (r"(?<![0-9)}\]]) *!=|\\ne(?![A-Za-z])", r"\\neq "),  # after a number it is a factorial
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"(?<![A-Za-z\\])(?:inf|infinity|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<=[)\]]) ?U ?(?=[(\[])", r"\\cup "),
        (r"(?<!\\)\$\s*(,|,?\s*(?:and|or))\s*\$", r" \1 "),
        (r"^([+-]?)([€£¥₹]) ?([0-9][0-9.,]*)$|^([+-]?[0-9][0-9.,]*) ?([€£¥₹])$", _money),
        (r"⁻?[⁰¹²³⁴-⁹]+", lambda match: _superscript(match[0].translate(_SUPERSCRIPTS))),
        (r"√ ?\(([^()]*)\)|√ ?([0-9]+(?:\.[0-9]+)?|[A-Za-z])", lambda match: rf"\sqrt{{{match[1] or match[2]}}}"),
        (r"\\! *|\{,\}", ""),
        (r"\\(?:left|right|bigl?|bigr?|Bigl?|Bigr?|displaystyle|limits)(?![A-Za-z])", ""),
        (r"(?<!\\)\\[,;: ]|~|\s+", " "),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\[dt]binom", r"\\binom"),
        (r"^ *([0-9A-Za-z]+ *\\choose *[0-9A-Za-z]+) *$", r"{\1}"),
        (r"\{ *([0-9A-Za-z]+) *\\choose *([0-9A-Za-z]+) *\}", r"\\binom{\1}{\2}"),
        (r"\\varnothing(?![A-Za-z])|^\\\{ *\\\}$", r"\\emptyset"),
        (r"\\(?:mathbf|boldsymbol|bm|mathit)\{([^{}]*)\}", r"\1"),
        (r"\\(?:mathrm|operatorname|text|textrm) ?\{ ?(i|e|\\pi) ?\}", r" \1 "),
        (
            r"\\(?:mathrm|mathsf|mathtt|text(?:rm|bf|it|sf|tt|sc|normal)|emph|mbox|hbox|operatorname) ?\{",
            r"\\text{",
        ),
        (r"\\text\{ ?(sin|cos|tan|log|ln|exp|lcm|gcd|max|min) ?\}", r"\\\1"),
        (r"(\\text\{[^{}\\]*)\^\{(\d)\}([^{}\\]*\})", r"\1^\2\3"),
        (r"\\text\{\s*(-?[\d.,/]+)\s*\}", r"\1"),
        (r"\\text\{\s*(-?[\d.,/]+)\s+([A-Za-z ]+(?:\^\d)?)\}", r"\1\\text{ \2}"),
        (rf",? *\\text\{{,?\s*and\s*\}}|,? and |{_WORD_BETWEEN.format('and')}", ","),
        (rf",? *\\text\{{,?\s*or\s*\}} *|,? or |{_WORD_BETWEEN.format('or')}", lambda _: f"{OR} "),
        (rf" *{_QUAD} *(?=$|[,;:=<>+*/)}}\]]|\\(?:lor|text|le|ge|neq|cup)(?![A-Za-z]))", " "),
        (rf"((?:^|[,;:=<>+*/({{\[-]|\\(?:lor|le|ge|neq|cup)) *){_QUAD}", r"\1 "),
        (rf" *{_QUAD} *", ";"),
        (r"[\[(] *\\begin\{(array|matrix|smallmatrix)\}(?:\{[^{}]*\})?(.*?)\\end\{\1\} *[\])]", _matrix),
        (r"\\begin\{bmatrix\}(.*?)\\end\{bmatrix\}", lambda match: _matrix(match, 1)),
        (r"\\\\ *(?=\\end\{pmatrix\})", ""),
        (r"(?<=[0-9A-Za-z)}\]]) ?\+ ?-", "-"),
        (r"\^\{\\circ\}|\\degree", r"^\\circ"),
        (r" {2,}", " "),
        (r" (?=\\text\{)", ""),
        (
            r"^(?:\\text\{ *)?[Aa]ll real(?: number)?s(?: *\})?$|(?:^|(?<=\\in)) ?\\mathbb ?\{?R\}?$",
            r"(-\\infty,\\infty)",
        ),
        (r"^[A-Za-z] ?\\in ?(?=[(\[]|\\\{)", ""),
        (r"^([0-9A-F]*[0-9][0-9A-F]*)_\{([0-9]+)\}$", r"\1_\2"),
        (rf"^([+-]?{_THOUSANDS})(?=\\(?:pi|sqrt)(?![A-Za-z]))", lambda match: match[1].replace(",", "")),
        (rf"(\\frac|\\sqrt|\}})\{{({_THOUSANDS})\}}", lambda match: f"{match[1]}{{{match[2].replace(',', '')}}}"),
        (rf"(?:^|(?<=[-+(/])){_THOUSANDS}(?=/)|(?<=/){_THOUSANDS}(?![0-9.,])", lambda match: match[0].replace(",", "")),
    )
)
_CURRENCY_SIGN = re.compile(r"^([+-]?)\\?\$ ?([+-]?)(?=[0-9.])([0-9.,]*$)?")
_SPACE_WITHOUT_MEANING = re.compile(r"(?<![A-Za-z0-9}]) (?!(?<=[0-9], )[0-9]{3}(?![0-9]))| (?![A-Za-z0-9\\])")
"""Not the one in `32, 349`, which is a list and no number."""


def _superscript(digits: str) -> str:
    return f"^{digits}" if len(digits) == 1 else f"^{{{digits}}}"


@lru_cache(maxsize=1 << 12)  # a reference is compared with every sample of its task
def normalize_spelling(text: str) -> str:
    """Return `text` in one spelling: no layout, no enclosing `$…$`, `\\(…\\)` or braces, no trailing period."""
    text = text.translate(_CHARACTERS)
    if r"\begin" not in text:  # no rows that a doubled backslash would end: it was escaped once too often
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = re.sub(r"(?<!\.)\.$", "", text.strip()).strip()
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]"), ("$$", "$$"), ("$", "$")):
        if len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing):
            text = text.removeprefix(opening).removesuffix(closing).strip()
    text = _CURRENCY_SIGN.sub(lambda match: f"{match[1]}{match[2]}" + (rf"{match[3]}\$" if match[3] else ""), text)
    while text.startswith("{") and text.endswith("}") and _closes_at_end(text):
        text = text[1:-1].strip()
    return _SPACE_WITHOUT_MEANING.sub("", text)


def _closes_at_end(text: str) -> bool:
    depth = 0
    for position, character in enumerate(text):
        escaped = position > 0 and text[position - 1] == "\\"
        depth += 0 if escaped else (character == "{") - (character == "}")
        if depth == 0:
            return position == len(text) - 1
    return False


# --- units ---------------------------------------------------------------------------------------------------------

_POWER = r"(?:\^(?:\d|\{\d\}))?"
_UNIT = re.compile(
    r"(?P<value>.*?[\w)}!])(?P<unit>"
    rf"\s*(?:\\text\{{(?:[^{{}}\d\\]|\^\d)*\}}{_POWER}/?)+"
    rf"|(?:(?<=[0-9)}}!])|\s)(?P<bare>[A-Za-z][A-Za-z. /]+{_POWER})"
    r"|\s*(?:\^\\circ ?(?:\\text\{ ?[CF] ?\}|[CF])?|\\?%|\\\$))",
    re.DOTALL,
)


def split_unit(text: str) -> tuple[str, str | None]:
    r"""Split a normalised text into (value, unit): `5\text{ cm}` is ("5", "cm"), `5` is ("5", None). Words that may
    change the value stay in it."""
    match = _UNIT.fullmatch(text)
    if match is None:
        return text, None
    value = match["value"].strip()
    words = re.sub(r"\\text\{([^{}]*)\}|(?<=\\circ) ", r"\1", match["unit"]).strip()
    unit = find_unit(words, value, nouns=not match["bare"]) if words else ""
    if unit is None:
        return text, None
    if words.startswith("^") and parse_number(value) is None:  # the degree sign of an angle inside an expression
        return text, None
    return value, unit or None


# --- numbers -------------------------------------------------------------------------------------------------------

_DIGITS = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)"
_DECIMAL = re.compile(
    rf"(?P<sign>[+-]?)(?P<whole>{_DIGITS}?)(?:\.(?P<part>[0-9]*))?(?:[eE](?P<power>[+-]?[0-9]{{1,3}}))?"
)
_FRACTION = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]+ ?)??"
    r"(?:\\frac ?(?:\{(?P<a>[+-]?[0-9]+)\}|(?P<a1>[0-9])) ?(?:\{(?P<b>[+-]?[0-9]+)\}|(?P<b1>[0-9]))"
    r"|(?P<a2>[0-9]+)/(?P<b2>[0-9]+))"
)
_REPEATING = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]*)\.(?P<part>[0-9]*)\\(?:overline|bar)\{(?P<period>[0-9]+)\}")


def parse_number(text: str) -> Fraction | None:
    r"""Parse a normalised integer, decimal (`1,234.5`, `1e3`, `0.\overline{3}`), fraction or mixed number exactly; None
    for all else."""
    match = _DECIMAL.fullmatch(text)
    if match and (match["whole"] or match["part"]):
        digits = f"{match['whole'].replace(',', '').replace(' ', '')}.{match['part'] or '0'}"
        return Fraction(f"{match['sign']}{digits}e{match['power'] or 0}")
    match = _REPEATING.fullmatch(text)
    if match:
        return _parse_repeating(match)
    match = _FRACTION.fullmatch(text)
    return _parse_fraction(match) if match else None


def _parse_repeating(match: re.Match[str]) -> Fraction:
    fixed, period = f"{match['whole']}{match['part']}", match["period"]
    value = Fraction(int(fixed + period) - int(fixed or 0), (10 ** len(period) - 1) * 10 ** len(match["part"]))
    return -value if match["sign"] == "-" else value


def _parse_fraction(match: re.Match[str]) -> Fraction | None:
    above = match["a"] or match["a1"] or match["a2"]
    below = match["b"] or match["b1"] or match["b2"]
    whole = match["whole"]
    if int(below) == 0 or (whole and (above.startswith("-") or below.startswith("-"))):
        return None
    if whole and match["a2"] and not whole.endswith(" "):
        return None
    if whole and int(above) >= int(below):
        return None
    value = Fraction(int(above), int(below)) + (int(whole) if whole else 0)
    return -value if match["sign"] == "-" else value


# --- what may be handed to an algebra system -----------------------------------------------------------------------

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+|[A-Za-z]+|.", re.DOTALL)
_ARGUMENTS = {r"\frac": 2, r"\binom": 2, r"\sqrt": 1, "^": 1, "_": 1, r"\begin": 1, r"\end": 1, r"\overline": 1}
_COMMAND = re.compile(
    r"\\(?:[{}|\\]|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|exp|lim|to|sum|prod|int|max|min|gcd"
    r"|pi|infty|cdot|times|div|le|ge|neq?|cup|cap|circ|[lr](?:floor|ceil|vert)|vert|emptyset|alpha|beta|gamma|delta"
    r"|epsilon|theta|lambda|mu|nu|rho|sigma|tau|phi|varphi|chi|psi|omega|Delta|Omega)"
)
_ENVIRONMENTS = frozenset({"matrix", "pmatrix", "bmatrix", "vmatrix"})
_SYMBOLS = frozenset("+-*/^_()[]{}|!,<>=.& ")
_MIXED_NUMBER = r"(?<![0-9.,_^])([0-9]+) ?\\frac\{([0-9]+)\}\{([0-9]+)\}"
_DOUBTFUL = re.compile(
    r"[0-9] [0-9]"  # two numbers, or one with a gap
    r"|(?<![\\A-Za-z])[A-Za-z]{2,} | [A-Za-z]{2,}"  # words
    r"|(?<![A-Za-z])_"  # a number in another base
    r"|[+-] ?[+-]"
    r"|\](?!,|\\cup|$)|(?<!^)(?<!,)(?<!\\cup)\["  # brackets inside: neither an interval nor the index of a root
    r"|\.(?![0-9])"
    r"|(?<![0-9])\.[0-9]*\."
    rf"|{_MIXED_NUMBER}"  # of an improper fraction: a sum or a product
)
_EXPRESSION_SPELLINGS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<![\\A-Za-z])(sin|cos|tan|log|ln|exp|sqrt|pi)(?![A-Za-z])", r"\\\1"),
        (r"\\sqrt ?\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt ?([0-9A-Za-z])", r"\\sqrt{\1}"),
        (r"\\frac ?([0-9A-Za-z]) ?([0-9A-Za-z])", r"\\frac{\1}{\2}"),
        (r"\\frac ?([0-9A-Za-z])\{", r"\\frac{\1}{"),
        (r"(\\frac\{[^{}]*\}) ?([0-9A-Za-z])", r"\1{\2}"),
        (r"\\log_([0-9A-Za-z]) ?", r"\\log_{\1}"),
        (_MIXED_NUMBER, lambda match: _mixed_as_sum(match)),
        (r"(?<![0-9.])([0-9]+)\.([0-9]+)", lambda match: _decimal_as_fraction(match[1], match[2])),
        (r"((?<![_^0-9])[0-9]+|\)) ?\(", r"\1\\cdot ("),
    )
)


def _mixed_as_sum(match: re.Match[str]) -> str:
    return rf"({match[1]}+\frac{{{match[2]}}}{{{match[3]}}})" if int(match[2]) < int(match[3]) else match[0]


def _decimal_as_fraction(whole: str, part: str) -> str:
    return rf"(\frac{{{int(whole + part)}}}{{{10 ** len(part)}}})"


def to_expression(text: str) -> str | None:
    """Convert a normalised text to unambiguous LaTeX, decimals to exact fractions; None for text that is none."""
    value = parse_number(text)
    if value is not None:
        return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    for pattern, replacement in _EXPRESSION_SPELLINGS:
        text = pattern.sub(replacement, text)
    without_indices = re.sub(r"\\sqrt\[[0-9A-Za-z]\]", r"\\sqrt", text)
    if _DOUBTFUL.search(without_indices) or not _is_mathematics(_TOKEN.findall(without_indices)):
        return None
    return text


def _is_mathematics(tokens: list[str]) -> bool:
    """Whether every token belongs to mathematics and every group is an argument of a command."""
    due, outer = 0, []
    for before, token in zip(["", *tokens], tokens, strict=False):
        if token == "{":
            if due == 0:
                return False
            outer.append(due - 1)
            due = 0
        elif token == "}":
            if not outer:
                return False
            due = outer.pop()
        elif token.isalpha():
            if len(token) > 3 and not (before == "{" and token in _ENVIRONMENTS):
                return False
            due = 0
        elif token in _ARGUMENTS:
            due = _ARGUMENTS[token]
        elif token in _SYMBOLS or token.isdecimal() or _COMMAND.fullmatch(token):
            due = 0
        else:
            return False
    return not outer
