"""Data fences: how a coach tells what it judges from what it is told.

What agents, programs and tasks wrote is data. It stands between two lines that carry the mark of the call, a random
word that is drawn anew for every call and that nobody who is judged can know:

    <<<DATA 3f9c51d07be2a864>>>
    | a line of data
    <<<END 3f9c51d07be2a864>>>

No line of data is at the beginning of a line, for each has a prefix. And no data looks like a fence: three opening
angle brackets in a row, whatever script or disguise they come in, are made round. What is replaced is replaced where
one sees it, by the rules that `neutral` states.
"""

from __future__ import annotations

import json
import re
import secrets
from functools import lru_cache

PREFIX = "| "
LONGEST_NAME = 200
"""Characters of a name; longer ones are cut in the middle."""

_LEFT = {
    **dict.fromkeys("<˂˱‹≤≦≨≮≰≲≴≺≼≾⊀⊰⋖⋜⋞⋠⋦⋨\u2329❬❮❰⟨⦑⦓⧀⧼⩹⩻⩽⩿⪁⪃⪅⪇⪉⪍⪕⪗⪙⪛⪝⪟⪦⪨⪯⪱⪳⪵⪷⪹⫹〈︿﹤＜ᐸᚲ𝈶", 1),
    **dict.fromkeys("«≪⟪《︽⪡⪣⪻", 2),
    **dict.fromkeys("⋘⫷", 3),
}
"""What passes for opening angle brackets, and for how many each."""
_LEFTS = "".join(_LEFT)
# Between brackets in a row may stand whatever shows little or nothing: spaces, marks without width, accents, fillers.
_FAINT = rf"(?:[^\w!-/:-@\[-`{{-~\n{_LEFTS}]|[\u115f\u1160\u3164\uffa0])"
_ROW = re.compile(rf"[{_LEFTS}](?:{_FAINT}*[{_LEFTS}])*")

_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Controls, halves of surrogate pairs, marks that turn the direction of writing, and characters that never show.
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")
_ODD = re.compile("|".join((_LINE_END.pattern, _UNSEEN.pattern, f"[{_LEFTS[1:]}]")))
_ASCII = bytes(range(128))
_ASCII_CONTROLS = bytes({*range(32), 127} - {9, 10})
_NO_NAME = re.compile(r"[^\w ./+@=-]|[\r\n\t]")


def new_mark() -> str:
    """A word of 64 random bits."""
    return secrets.token_hex(8)


def neutral(text: str) -> str:
    """`text` as it may stand in a fence, less the prefix.

    Every line end (those of str.splitlines) becomes a line feed. Control characters, halves of surrogate pairs and
    characters that never show become their escape in Python (`\\x1b`). In a row of opening angle brackets that counts
    three or more, each becomes as many round ones, and all else stays.
    """
    if not _is_plain(text):
        text = _UNSEEN.sub(_escaped, _LINE_END.sub("\n", text))
    elif text.count("<") < 3:
        return text
    return _ROW.sub(_blunted, text)


def lines_of(text: str) -> str:
    """`text` as it stands in a fence: neutral, with the prefix on every line."""
    return PREFIX + neutral(text).replace("\n", f"\n{PREFIX}")


def fenced(lines: str, mark: str) -> str:
    """A fence around `lines_of` a text."""
    return f"<<<DATA {mark}>>>\n{lines}\n<<<END {mark}>>>"


def quoted(name: str) -> str:
    """A name of data, such as a file's, for a list inside a fence: in quotes, on one line, whatever is in it."""
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME // 2]}…{name[-LONGEST_NAME // 2 :]}"
    return _LINE_END.sub(_escaped, json.dumps(name, ensure_ascii=False))


@lru_cache(maxsize=1024)
def plain(name: str) -> str:
    """A name that whoever wrote the workflow gave, for a place outside of any fence: what no name needs is replaced."""
    return _NO_NAME.sub("_", name)[:LONGEST_NAME]


def _is_plain(text: str) -> bool:
    """Whether nothing has to be replaced in it but, perhaps, rows of `<`. This is far quicker than to look for all the
    rest, which most texts do not hold."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data.translate(None, _ASCII_CONTROLS)) < len(data):
        return False
    return text.isascii() or not _ODD.search(data.translate(None, _ASCII).decode("utf-8", "surrogatepass"))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _blunted(match: re.Match[str]) -> str:
    row = match[0]
    if sum(_LEFT[character] for character in row if character in _LEFT) < 3:
        return row
    return "".join("(" * _LEFT[character] if character in _LEFT else character for character in row)
