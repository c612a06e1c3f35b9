"""Days of the week and numbers of days that stand beside dates in a text, held against the calendar."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import date

_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_DAYS = tuple(name.lower() for name in calendar.day_name)
_MONTH = "|".join(f"{month}|{month[:3]}" for month in _MONTHS)
_DATE = (
    r"(?:(?P<iso>\d{4}-\d\d-\d\d)"
    rf"|(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<year>\d{{4}})"
    rf"|(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month2>{_MONTH})\.?,? (?P<year2>\d{{4}}))"
)
_DAY = "|".join(_DAYS)
_NAMED_AFTER = re.compile(
    rf"\b{_DATE}(?:,? (?:is|was|falls on|fell on|will be|which is|lands on)(?: an?)?| ?\() ?(?P<name>{_DAY})\b",
    re.IGNORECASE,
)
_NAMED_BEFORE = re.compile(rf"\b(?P<name>{_DAY}),? (?:the )?{_DATE}(?!\d)", re.IGNORECASE)
_SPAN = re.compile(
    r"\bfrom (?P<first>\d{4}-\d\d-\d\d) (?:to|until|through) (?P<last>\d{4}-\d\d-\d\d)"
    r"(?:,? (?:is|are|makes"
    r"|which is|that is)|:|,)? "
    r"\(?(?P<count>\d+) (?P<unit>days|nights)\b",
    re.IGNORECASE,
)


def wrong_dates(text: str) -> Iterator[str]:
    """What the calendar says against a text, a sentence for each thing, in the order of the patterns."""
    for pattern in (_NAMED_AFTER, _NAMED_BEFORE):
        for found in pattern.finditer(text):
            day = _read_date(found)
            if day is not None and _DAYS[day.weekday()] != found["name"].lower():
                yield f"“{found[0]}”, it says; {day.isoformat()} is a {_DAYS[day.weekday()].capitalize()}."
    for found in _SPAN.finditer(text):
        first, last = _read_iso(found["first"]), _read_iso(found["last"])
        if first is None or last is None:
            continue
        nights = (last - first).days
        # Days may count the first one or not.
        right = {nights} if found["unit"].lower() == "nights" else {nights, nights + 1}
        if int(found["count"]) not in right:
            yield f"“{found[0]}”, it says; there are {nights} nights between the two."


def _read_date(found: re.Match[str]) -> date | None:
    if found["iso"]:
        return _read_iso(found["iso"])
    month, day, year = (found[name] or found[name + "2"] for name in ("month", "day", "year"))
    number = next(place for place, name in enumerate(_MONTHS, 1) if name.startswith(month.lower()))
    try:
        return date(int(year), number, int(day))
    except ValueError:
        return None


def _read_iso(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
