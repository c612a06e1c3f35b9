"""Keep keys out of all that is written (records, logs, the console), and show what strangers wrote without obeying it.
A key is known by the name of its environment variable. Standard library only."""

import json
import os
import re
import traceback
import unicodedata
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")
"""Controls, unpaired surrogates, bidirectional controls, and invisible characters; not line ends and tabs."""
MAX_NAME_LENGTH = 200  # Characters; of longer names the middle is not shown.
_UNSEEN_KINDS = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_UNSEEN_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
MAX_MARKS = 2  # On one letter; more of them would be drawn over other lines.
_KEY_NAME = re.compile("(^|_)((API)?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)(_|$)", re.IGNORECASE)
MIN_LENGTH, MIN_DISGUISED_LENGTH = 8, 16
_URL_SAFE = str.maketrans("+/", "-_")
_ESCAPED_SPACE = re.compile(r"\\[nrt]")
"""White space in JSON."""
_SPACE = r"(?:\s|\\[nrt])*+"
_masks: dict[str, str] = {}


def keep_secret(name: str, value: str) -> None:
    """Mask `value` as `[name]` from now on, unless it has fewer than eight characters: a placeholder such as `none`."""
    if len(value) >= MIN_LENGTH:
        _masks.update(dict.fromkeys(_encodings(value), f"[{name}]"))


def _encodings(value: str) -> tuple[str, ...]:
    """Return `value` and what a server may make of it: as it stands in a URL, as Python quotes it in a message,
    backwards, in base64 (wherever in a longer text it stood), and in hex."""
    raw = value.encode()
    found = [value, quote(value, safe=""), repr(value)[1:-1], value[::-1], raw.hex(), raw.hex().upper()]
    for before in range(3):
        # Only characters that are of the value's own bits: those at its ends depend on what stands beside it.
        first, end = -(-8 * before // 6), 8 * (before + len(raw)) // 6
        encoded = b64encode(bytes(before) + raw).decode()[first:end]
        found += [encoded, encoded.translate(_URL_SAFE)]
    return tuple(dict.fromkeys(found))


class SecretForms:
    """Masks one secret in what a server sends that knows it, which may disguise it: also in another case, and with
    white space in it. These need a key of sixteen characters, or they would mask words of a placeholder."""

    def __init__(self, name: str, value: str) -> None:
        self._mask = f"[{name}]"
        self._forms = _encodings(value) if len(value) >= MIN_LENGTH else (value,)
        # Searched for without white space and in lower case; where one is found, by an expression that allows both.
        self._squeezed = [form.lower() for form in self._forms] if len(value) >= MIN_DISGUISED_LENGTH else []

    def mask(self, text: str) -> str:
        """Return `text` with the secret masked."""
        for form in self._forms:
            text = text.replace(form, self._mask)
        if self._squeezed:
            squeezed = "".join(_ESCAPED_SPACE.sub("", text).split()).lower()
            for form in self._squeezed:
                if form in squeezed:
                    spaced = _SPACE.join(map(re.escape, form))
                    text = re.sub(spaced, lambda _: self._mask, text, flags=re.IGNORECASE)
        return text


def keep_environment() -> None:
    """Mask the values of all environment variables whose names are those of keys: a library may read any of them."""
    for name in filter(_KEY_NAME.search, tuple(os.environ)):
        keep_secret(name, os.environ[name].strip())


def redact(text: str) -> str:
    """Return `text` with every known key masked, also as `_encodings` lists."""
    # A copy: a tracker's thread may keep a secret meanwhile.
    for form, mask in tuple(_masks.items()):
        text = text.replace(form, mask)
    return text


def clean(text: str) -> str:
    """Return `text` for a terminal: redacted, and what is unseen as its escape in JSON (`\\u001b`)."""
    return UNSEEN.sub(lambda found: escape(found[0]), redact(text))


def clean_name(name: str) -> str:
    """Return a stranger's name (of an agent, a tool, a task, a file) for a terminal or a log, as `clean_line` does, and
    cut in the middle beyond MAX_NAME_LENGTH characters."""
    return clean_line(cut_name(name))


def clean_line(text: str) -> str:
    """Return names with words of ours between them for a terminal or a log: redacted, on one line, and what is unseen
    as its escape in JSON."""
    text = redact(text)
    # As nearly all are.
    if text.isascii() and text.isprintable():
        return text
    return "".join(escape(sign) if hidden else sign for sign, hidden in find_unseen(text))


def cut_name(name: str) -> str:
    """Replace the middle of a name that is too long by the beginning of its hash, so that two names stay two."""
    if len(name) <= MAX_NAME_LENGTH:
        return name
    mark = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    room = (MAX_NAME_LENGTH - len(mark) - 2) // 2
    return f"{name[:room]}…{mark}…{name[-room:]}"


def find_unseen(name: str) -> Iterator[tuple[str, bool]]:
    """Characters of a name, each with whether it is unseen: controls, line ends, spaces but the common one, marks of
    direction, what has no width, letters without a shape, and marks on a letter beyond MAX_MARKS."""
    for is_mark, run in groupby(name, lambda sign: unicodedata.category(sign)[0] == "M"):
        for place, sign in enumerate(run):
            is_unseen = unicodedata.category(sign) in _UNSEEN_KINDS or sign in _UNSEEN_LETTERS or _is_selector(sign)
            yield sign, (is_unseen and sign != " ") or (is_mark and place >= MAX_MARKS)


def _is_selector(sign: str) -> bool:
    """Whether a character chooses between shapes of the one before it, and has none of its own."""
    return "\ufe00" <= sign <= "\ufe0f" or "\U000e0100" <= sign <= "\U000e01ef" or "\u180b" <= sign <= "\u180f"


def escape(text: str) -> str:
    """Return `text` as JSON writes it within quotation marks, in ASCII."""
    return json.dumps(text)[1:-1].replace("\x7f", "\\u007f")


def format_error(error: BaseException) -> str:
    """Return a short traceback, redacted: of the last five calls, without the values of their variables."""
    return redact("".join(traceback.format_exception(error, limit=-5))[-4000:].rstrip())


def describe_error(error: BaseException, *expected: type[BaseException]) -> str:
    """Return type and message, redacted, and the last three lines of code that it was raised through, unless its type
    is `expected`: `KeyError: 'points' (my_coach.py:41, parse.py:12)`. The catching function is not one of them."""
    # The first frame is that of the catching function.
    frames = [] if isinstance(error, expected) else traceback.extract_tb(error.__traceback__)[1:][-3:]
    where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return redact(f"{type(error).__name__}: {error}" + (f" ({where})" if where else ""))
