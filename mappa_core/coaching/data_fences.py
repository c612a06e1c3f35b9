"""Data fences: delimiters that protect a coach's prompt against injection by the text it judges. Data stands between
two lines with the nonce of the call, which no judged agent can know. Every line of data has a prefix, so that none
stands at the beginning of a line, and no data looks like a fence, by the rules of `neutralize`."""

from __future__ import annotations

import json
import re
import secrets
from functools import lru_cache

from mappa_core.redaction import UNSEEN

LINE_PREFIX = "| "
MAX_NAME_LENGTH = 200  # Longer names are cut in the middle.

_LEFT = {
    **dict.fromkeys("<˂˱‹≤≦≨≮≰≲≴≺≼≾⊀⊰⋖⋜⋞⋠⋦⋨\u2329❬❮❰⟨⦑⦓⧀⧼⩹⩻⩽⩿⪁⪃⪅⪇⪉⪍⪕⪗⪙⪛⪝⪟⪦⪨⪯⪱⪳⪵⪷⪹⫹〈︿﹤＜ᐸᚲ𝈶", 1),
    **dict.fromkeys("«≪⟪《︽⪡⪣⪻", 2),
    **dict.fromkeys("⋘⫷", 3),
}
"""Characters that look like opening angle brackets, and like how many."""
_LEFTS = "".join(_LEFT)
# Inside a run of brackets: characters that are hardly visible, such as spaces, zero-width marks, accents, fillers.
_INVISIBLE = rf"(?:[^\w!-/:-@\[-`{{-~\n{_LEFTS}]|[\u115f\u1160\u3164\uffa0])"
_BRACKET_RUN = re.compile(rf"[{_LEFTS}](?:{_INVISIBLE}*[{_LEFTS}])*")

_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Without the first of them, `<`, which is in many texts and is counted apart.
_UNUSUAL = re.compile("|".join((_LINE_END.pattern, UNSEEN.pattern, f"[{_LEFTS[1:]}]")))
_ASCII = bytes(range(128))
_ASCII_CONTROLS = bytes({*range(32), 127} - {9, 10})
_NOT_NAME = re.compile(r"[^\w ./+@=-]|[\r\n\t]")


def new_nonce() -> str:
    """Return a nonce of 64 random bits in hex."""
    return secrets.token_hex(8)


def neutralize(text: str) -> str:
    """Make `text` safe for a fence, but for the line prefix, by visible replacements. Line ends (as of str.splitlines)
    become line feeds; control characters, unpaired surrogates and invisible ones become their Python escape (`\\x1b`);
    in a run of opening angle brackets, in any script, that counts three or more, each becomes as many round ones."""
    if not _is_plain(text):
        # Line ends first: some of them are control characters, and would be escaped.
        text = UNSEEN.sub(_escape, _LINE_END.sub("\n", text))
    elif text.count("<") < 3:
        return text  # No run of three.
    return _BRACKET_RUN.sub(_make_round, text)


def prefix_lines(text: str) -> str:
    """Neutralize `text` and prefix every line, for a fence."""
    return LINE_PREFIX + neutralize(text).replace("\n", f"\n{LINE_PREFIX}")


def fence_lines(lines: str, nonce: str) -> str:
    """Put a fence around lines from `prefix_lines`."""
    return f"<<<DATA {nonce}>>>\n{lines}\n<<<END {nonce}>>>"


def quote_name(name: str) -> str:
    """Quote an untrusted name, such as a file name, on one line, for a list inside a fence."""
    if len(name) > MAX_NAME_LENGTH:
        name = f"{name[: MAX_NAME_LENGTH // 2]}…{name[-MAX_NAME_LENGTH // 2 :]}"
    return _LINE_END.sub(_escape, json.dumps(name, ensure_ascii=False))


@lru_cache(maxsize=1024)
def sanitize_name(name: str) -> str:
    """Sanitize a name from the workflow for text outside of fences: characters unusual in names are replaced."""
    return _NOT_NAME.sub("_", name)[:MAX_NAME_LENGTH]


def _is_plain(text: str) -> bool:
    """Whether `text` needs no replacement except perhaps of runs of `<`: a fast path, as in most texts."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data.translate(None, _ASCII_CONTROLS)) < len(data):
        return False
    if text.isascii():
        return True
    # The expression is slow and ASCII holds nothing else that it finds; `translate` drops it at the speed of a copy.
    beyond_ascii = data.translate(None, _ASCII).decode("utf-8", "surrogatepass")
    return not _UNUSUAL.search(beyond_ascii)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _make_round(match: re.Match[str]) -> str:
    run = match[0]
    # Shorter ones cannot be taken for a fence, and are common: comparisons, shifts of bits, quotation marks.
    if sum(_LEFT[character] for character in run if character in _LEFT) < 3:
        return run
    return "".join("(" * _LEFT[character] if character in _LEFT else character for character in run)
