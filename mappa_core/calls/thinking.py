"""Think text apart from the reply. Providers keep it out; a server of one's own may leave it in."""

from __future__ import annotations

import re

_TAG = "(?:think|thinking|thought|reasoning)"
# White space is taken whole (`*+`): a reply of nothing else would otherwise be searched once for every space of it.
_THOUGHT = re.compile(rf"\s*+(?:<{_TAG}>)?((?:(?!<{_TAG}>).)*?)</{_TAG}>\s*", re.DOTALL)
_UNENDING_THOUGHT = re.compile(rf"\s*+<{_TAG}>(.*)", re.DOTALL)


def split_thought(text: str) -> tuple[str | None, str]:
    """(the thought that `text` begins with or None, what is said after it).

    It stands between tags, of which the first can be missing, as it stood in the prompt, and the last too, as the
    tokens ran out: then nothing is said. Text that begins with no thought is returned as it is.
    """
    thought = _THOUGHT.match(text) or _UNENDING_THOUGHT.match(text)
    return (None, text) if thought is None else (thought[1].strip("\n"), text[thought.end() :])
