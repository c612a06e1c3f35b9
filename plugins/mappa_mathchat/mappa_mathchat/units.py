"""Units and nouns after a value: which words leave the value what it is, and which of them mean the same."""

from __future__ import annotations

import re

_SPELLINGS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram gm",
    "kg": "kilogram", "lb": "pound", "oz": "ounce", "ton": "tonne", "ml": "mL milliliter millilitre",
    "l": "L liter litre", "gallon": "gal", "ms": "millisecond", "s": "sec second", "min": "minute", "h": "hr hour",
    "day": "", "week": "", "month": "", "year": "yr year-old years-old", "degree": r"deg ^\circ", "rad": "radian",
    "unit": "",
    "celsius": r"degree-celsius ^\circC", "fahrenheit": r"degree-fahrenheit ^\circF", "percent": r"\% % pct percentage",
    "dollar": r"\$ USD", "cent": "", "euro": "", "yen": "", "rupee": "", "mi/h": "mph", "km/h": "kmh kph kmph",
}  # fmt: skip
_UNITS = {spelling: unit for unit, others in _SPELLINGS.items() for spelling in (unit, *others.split())}
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_IRREGULAR_PLURALS = frozenset({"people", "children", "men", "women", "mice", "geese", "dice", "fish", "sheep"})
_NOT_A_NOUN = re.compile(
    r"or|and|not|nor|but|to|than|if|when|where|is|are|was|were|has|have|does|this|thus|as|so|no|yes|more|most|less"
    r"|least|fewer|about|around|almost|nearly|roughly|approx(?:imately)?|exactly|perhaps|maybe|wrong|false|true"
    r"|except|minus|plus|over|under|above|below|divided|multiplied|choose|remainder|modulo|mod|pi|factorial"
    r"|squared|cubed|power|root|base|between|from|for|with|without|at|negative|positive|odd|even|minimum|maximum"
    r"|each|every|twice|double|triple|half|halves|thirds?|quarters?|dozens?|scores?|gross|lakhs?|crores?|millions?"
    r"|billions?|trillions?|bn|mn|hundreds?|thousands?|zeros?|ones?|twos?|threes?|fours?|fives?|six(?:es)?|sevens?"
    r"|eights?|nines?|tens?|eleven|twelve|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|\w+teens?|infinity"
    r"|undefined|am|pm|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand|million|\w+teen)ths?"
)


def find_unit(words: str, value: str, *, nouns: bool) -> str | None:
    """Return the one name of a unit (`square centimeters` and `cm^2` are both `cm^2`) or, with `nouns`, of what is
    counted (`apple`); None for words that may change what `value` says (`million`, `at most`, `x`)."""
    first, *others = re.split(r"/| per ", words.strip())
    names = [_find_factor(first) or (_find_noun(first, plural=value != "1") if nouns else None)]
    names += [_find_factor(other) or (_find_noun(other, plural=False) if nouns else None) for other in others]
    return None if None in names else "/".join(name for name in names if name)


def _find_factor(words: str) -> str | None:
    """Return the unit of words such as `cm^3` and `cubic centimeters`."""
    match = re.fullmatch(r"(?:(square|sq|cubic|cu)(?:\. ?| ))?(.+?)\.?(?:\^\{?(\d)\}?)?", words.strip())
    if match is None or (match[1] and match[3]):
        return None
    name = "-".join(re.sub(r"^degrees ", "degree ", match[2]).split())
    unit = next((_UNITS[one] for one in _singulars(name) if one in _UNITS), None)
    power = _POWERS[match[1]] if match[1] else match[3]
    return unit if unit is None or power is None else f"{unit}^{power}"


def _singulars(name: str) -> list[str]:
    """Return what a name may be the plural of; a short name is taken as it is written, since `M` is not `m`."""
    found = [name] if len(name) < 3 else [name, name.lower()]
    return [*found, *(one.removesuffix("s") for one in found if len(one) > 2)]


def _find_noun(words: str, *, plural: bool) -> str | None:
    """Return the noun of words such as `red apples` or `cups of flour`."""
    names = words.lower().split()
    counted = names[: names.index("of")] if "of" in names[1:-1] else names
    if not counted or not all(re.fullmatch("[a-z]{2,}", name) for name in names) or len(counted[-1]) < 3:
        return None
    if any(_NOT_A_NOUN.fullmatch(name) for name in names):
        return None
    if plural and not (re.search("[^s]s$", counted[-1]) or counted[-1] in _IRREGULAR_PLURALS):
        return None
    return " ".join([*names[:-1], names[-1].removesuffix("s")])
