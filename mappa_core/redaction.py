"""Keep keys out of all that is written (records, logs, the console), and show what strangers wrote without obeying it.
A key is known by the name of its environment variable. Standard library only."""

import json
import os
import re
import traceback
from pathlib import Path
from urllib.parse import quote

UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")
"""Controls, unpaired surrogates, bidirectional controls, and invisible characters; not line ends and tabs."""
_KEY_NAME = re.compile("(^|_)((API)?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)(_|$)", re.IGNORECASE)
_masks: dict[str, str] = {}


def keep_secret(name: str, value: str) -> None:
    """Mask `value` as `[name]` from now on, unless it has fewer than eight characters: a placeholder such as `none`."""
    if len(value) >= 8:
        # Also as it stands in a URL, and as Python quotes it in a message.
        forms = (value, quote(value, safe=""), repr(value)[1:-1])
        _masks.update(dict.fromkeys(forms, f"[{name}]"))


def keep_environment() -> None:
    """Mask the values of all environment variables whose names are those of keys: a library may read any of them."""
    for name in filter(_KEY_NAME.search, tuple(os.environ)):
        keep_secret(name, os.environ[name].strip())


def redact(text: str) -> str:
    """Return `text` with every known key masked, also where it is percent-encoded or quoted."""
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
