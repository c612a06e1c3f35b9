"""Normalises the cells of CSV files: `1`, `1.0` and `True` are one label, `7` and `7.0` one id."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime

_LABEL = re.compile(r"([+-]?(?:0|[1-9][0-9]{0,30}))(?:\.0*)?")
_WHOLE = re.compile(r"([+-]?[0-9]{1,40})(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ].*)?")
_TRUTHS = {"True": "1", "true": "1", "TRUE": "1", "False": "0", "false": "0", "FALSE": "0"}
_ABSENT = frozenset({"", "nan", "na", "n/a", "<na>", "null", "none", "nat", "inf", "infinity"})


def parse_number(cell: str) -> float | None:
    """Parse the number in a cell; None where it holds something else, infinite where it is too large for a float."""
    text = cell.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def normalize_label(cell: str) -> str:
    """Normalise a label: integers without a fraction, booleans as 1 and 0, other text stripped, its case kept."""
    text = cell.strip()
    if match := _LABEL.fullmatch(text):
        return str(int(match[1]))
    return _TRUTHS.get(text, text)


def is_integer(cell: str) -> bool:
    """Whether a cell holds an integer, with a fraction of zero or none."""
    return _LABEL.fullmatch(cell.strip()) is not None


def is_absent(cell: str) -> bool:
    """Whether a cell is empty, a marker of a missing value, or infinite."""
    return cell.strip().lstrip("+-").lower() in _ABSENT


def choose_id_form(ids: Sequence[str]) -> Callable[[str], str]:
    """Choose the function that normalises ids: as integers, numbers, dates or text, whichever fits all of `ids`.

    The function returns text that does not fit unchanged. Dates are ISO 8601.
    """
    for fits, form in (
        (_WHOLE.fullmatch, _normalize_integer),
        (_NUMBER.fullmatch, _normalize_real),
        (_parse_date, _normalize_date),
    ):
        if all(fits(one.strip()) for one in ids):
            return form
    return str.strip


def _normalize_integer(cell: str) -> str:
    text = cell.strip()
    match = _WHOLE.fullmatch(text)
    return str(int(match[1])) if match else text


def _normalize_real(cell: str) -> str:
    value = parse_number(cell)
    return cell.strip() if value is None else repr(value)


def _normalize_date(cell: str) -> str:
    text = cell.strip()
    moment = _parse_date(text)
    return text if moment is None else moment.isoformat()


def _parse_date(text: str) -> datetime | None:
    if not _DATE.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
