"""The tasks and the team: a reporter calls the glossary, an editor prints the result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from acme_press.glossary import MEANINGS
from mappa_core import Message, NoOptions, Role, Scene, Split, Stage, Step, Task, Workflow

REPORTER, EDITOR = "reporter", "editor"


@dataclass
class WordsOptions:
    seed: int = 7


class Words:
    """Tasks of two words, one of which to look up; the tasks of two words are held out."""

    def __init__(self, options: WordsOptions) -> None:
        pairs = [(word, other) for word in MEANINGS for other in MEANINGS if word != other]
        Random(options.seed).shuffle(pairs)
        self._tasks = [
            Task(
                id=f"{word}/{other}",
                prompt=word,
                reference=MEANINGS[word],
                stratum="short" if len(word) < 5 else "long",
                meta={"words": sorted((word, other))},
            )
            for word, other in pairs
        ]

    def load(self, split: Split) -> Sequence[Task]:
        known = {task.prompt: number for number, task in enumerate(self._tasks)}
        held_out = set(sorted(known, key=lambda word: known[word])[:2])
        return [task for task in self._tasks if (task.prompt in held_out) == (split == "eval")]


class Press(Workflow):
    agents: Mapping[str, Role] = {
        REPORTER: Role(brief="Looks the word up.", produces=("note.txt",)),
        EDITOR: Role(brief="Prints what the word means.", needs=("note.txt",)),
    }
    metric = "printed"
    figures = ("looked_up",)

    def __init__(self, options: NoOptions) -> None:
        pass

    @property
    def max_turns(self) -> Mapping[str, int]:
        return {REPORTER: 1, EDITOR: 1}

    async def run(self, stage: Stage) -> None:
        words = stage.task.meta["words"]
        orders = [json.dumps({"name": "glossary", "arguments": {"word": word}}) for word in words]
        calls = [f"<tool_call>{order}</tool_call>" for order in orders]
        ask = "\n".join([f"Look up {stage.task.prompt}.", *(f"- {call}" for call in calls)])
        looked = await stage.act(REPORTER, [Message(role="user", content=ask)], tools=("glossary",))
        found = [result.stdout for result in looked.results if result.status == "ok"]
        heads = [*found, "nothing was found"]
        stage.random.shuffle(heads)
        print_it = "\n".join([f"Print what {stage.task.prompt} means.", *(f"- {head}" for head in heads)])
        printed = await stage.act(EDITOR, [Message(role="user", content=print_it)])
        stage.record(
            printed=await stage.grade(printed.reply.content),
            looked_up=float(MEANINGS[stage.task.prompt] in found),
        )

    async def grade(self, text: str, task: Task) -> float:
        return float(text.strip() == task.reference)

    def answer(self, steps: Sequence[Step]) -> str | None:
        return steps[-1].reply.content.strip() or None

    def strata(self, scene: Scene) -> Mapping[str, str]:
        return {"called": "yes" if any(step.calls for step in (*scene.earlier, scene.step)) else "no"}
