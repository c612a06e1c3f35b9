"""A provider without a model that adds to a prompt the line which feedback misses most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from mappa_core import Message, NoOptions
from mappa_core.transport import Reply, Request
from mappa_gepa.relay.models import HOST, build_reply, read_fenced

_LACKING = re.compile(r"Its prompt lacks the line “(.*?)”")


class LineEditor:
    """Answers a request for a better prompt of the team `desk`. Where feedback misses no line, the prompt stays."""

    model = "line-editor"
    host = HOST

    def __init__(self, options: NoOptions | None = None) -> None:
        pass

    async def complete(self, request: Request) -> Reply:
        """Edit the first text of the request by the others."""
        prompt, *feedback = read_fenced(request)
        lacking = Counter(line for text in feedback for line in _LACKING.findall(text))
        added = "".join(f"\n- {line}" for line, _ in lacking.most_common(1))
        return build_reply(f"``````\n{prompt}{added}\n``````", self.model, request)

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Return None: it has no tokens."""
        return None

    async def close(self) -> None:
        """Release nothing."""
