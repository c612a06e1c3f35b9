"""Keep keys out of all that is written (records, logs, the console), and show what strangers wrote without obeying it.
A key is known by the name of its environment variable. Standard library only."""

import json
import os
import re
import traceback
from base64 import b64encode
from pathlib import Path
from urllib.parse import quote

UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")
"""Controls, unpaired surrogates, bidirectional controls, and invisible characters; not line ends and tabs."""
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
    return UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f"), redact(text))


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
