"""The provider that the page on coaches shows works; its settings are tried in `test_samples.py`."""

import json
import re
import types
from pathlib import Path

from mappa.testing import WireServer, json_answer, load_plugins, play
from mappa_core import Message, Role, Task, Workflow

PAGE = (Path(__file__).parents[2] / "docs" / "coaches.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class One(Workflow):
    agents = {"writer": Role(brief="writes")}  # noqa: RUF012

    async def run(self, stage):
        await stage.act("writer", [Message(role="user", content="?")])


async def test_the_provider_of_the_page_judges():
    module = types.ModuleType("here")
    exec(PROGRAM, module.__dict__)
    registry = load_plugins(only=(), modules={"here": module})
    options = registry.offer("coaches", "here").options
    answers = [
        json_answer({"text": json.dumps({"reasoning": "fine", "blame": None, "score": 7.5})}),
        json_answer({"error": "no"}, 401),
    ]
    async with WireServer(answers) as server:
        coach = registry.build("coaches", "here", options(model="h-1", url=server.url))
        judged = [await play(One(), Task(id=str(n), prompt="?"), ["x"], coach=coach) for n in range(2)]
        await coach.close()
    (good,), (bad,) = (one.verdicts for one in judged)
    assert (good.score, good.model) == (7.5, "h-1")
    assert bad.status == "failed" and bad.error.startswith("key: ")
