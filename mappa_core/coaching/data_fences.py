"""Data fences: delimiters that protect a coach's prompt against injection by the text it judges. Data stands between
two lines with the nonce of the call, which no judged agent can know. Every line of data has a prefix, so that none
stands at the beginning of a line, and no data looks like a fence, by the rules of `neutralize`."""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from functools import lru_cache

from mappa_core.redaction import UNSEEN, cut_name, escape, find_unseen

LINE_PREFIX = "| "
MAX_PLAIN_WORDS = 3
MAX_PLAIN_BYTES, MAX_PLAIN_BYTES_BEYOND_ASCII = 64, 40
"""Of a name in UTF-8: longer ones, and those of more words, are quoted, as they have room for an order."""
_PLAIN_SIGNS = frozenset(" _./+@=-")

_LEFT = {
    **dict.fromkeys("<˂˱‹≤≦≨≮≰≲≴≺≼≾⊀⊰⋖⋜⋞⋠⋦⋨\u2329❬❮❰⟨⦑⦓⧀⧼⩹⩻⩽⩿⪁⪃⪅⪇⪉⪍⪕⪗⪙⪛⪝⪟⪦⪨⪯⪱⪳⪵⪷⪹⫹〈︿﹤＜ᐸᚲ𝈶", 1),
    **dict.fromkeys("«≪⟪《︽⪡⪣⪻", 2),
    **dict.fromkeys("⋘⫷", 3),
}
"""Characters that look like opening angle brackets, and like how many."""
_LEFTS = "".join(_LEFT)
_BRACKET_ESCAPES = {sign: f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else escape(sign) for sign in _LEFT}
# Inside a run of brackets: characters that are hardly visible, such as spaces, zero-width marks, accents, fillers.
_INVISIBLE = rf"(?:[^\w!-/:-@\[-`{{-~\n{_LEFTS}]|[\u115f\u1160\u3164\uffa0])"
_BRACKET_RUN = re.compile(rf"[{_LEFTS}](?:{_INVISIBLE}*[{_LEFTS}])*")

_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Without the first of them, `<`, which is in many texts and is counted apart.
_UNUSUAL = re.compile("|".join((_LINE_END.pattern, UNSEEN.pattern, f"[{_LEFTS[1:]}]")))
_ASCII = bytes(range(128))
_ASCII_CONTROLS = bytes({*range(32), 127} - {9, 10})


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


def quote_name(name: str, *, always: bool = False) -> str:
    """Return a stranger's name (of an agent, a tool, a file, a measure) for a model, on one line: as it is if it is
    plain, else or `always` as a JSON string in which everything unseen, and every opening angle bracket, is an escape.
    So two names never read alike, and no name ends its quotation. Cut like `redaction.cut_name`."""
    return name if not always and _is_plain_name(name) else _quote(name)


@lru_cache(maxsize=4096)
def _quote(name: str) -> str:
    shown = (
        escape(sign) if unseen else _BRACKET_ESCAPES.get(sign) or json.dumps(sign, ensure_ascii=False)[1:-1]
        for sign, unseen in find_unseen(cut_name(name))
    )
    return f'"{"".join(shown)}"'


@lru_cache(maxsize=4096)
def _is_plain_name(name: str) -> bool:
    """Whether a name needs no quotation: up to three words of letters, digits and the signs of paths, and short."""
    size, words = len(name.encode("utf-8", "surrogatepass")), name.split(" ")
    # Scripts that write without spaces say a whole sentence in what would be one word.
    if size > (MAX_PLAIN_BYTES if name.isascii() else MAX_PLAIN_BYTES_BEYOND_ASCII) or len(words) > MAX_PLAIN_WORDS:
        return False
    return all(words) and all(
        not unseen and (sign.isalnum() or sign in _PLAIN_SIGNS or unicodedata.category(sign)[0] == "M")
        for sign, unseen in find_unseen(name)
    )


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
