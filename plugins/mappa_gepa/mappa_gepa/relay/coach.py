"""The coach `relay-duties`: holds every action against the duties of its agent, on what the agent was handed."""

from __future__ import annotations

from collections.abc import Iterator

from mappa_core import MAX_SCORE, Coach, Scene, Verdict
from mappa_gepa.relay.instructions import INSTRUCTIONS, WORDS_MARK, follow
from mappa_gepa.relay.team import DUTIES

WRONG_POINTS = 2.0


class DutyCoach(Coach):
    """Blames the agent whose action is not what its duties make of the words it was handed. One that does its part on
    words that were wrong already keeps its points, and the first who went wrong is blamed."""

    async def score(self, scene: Scene) -> Verdict:
        """Judge by rule, without the reference."""
        agent, words, written = scene.step.agent, _words(scene), scene.step.reply.content
        if written != _join(follow(DUTIES[agent], words)):
            return Verdict.scored(WRONG_POINTS, _explain(agent, words, written), blame=agent)
        guilty = next(_faults(scene), None)
        if guilty is None:
            return Verdict.scored(MAX_SCORE, "It did its part.", blame="nobody")
        return Verdict.scored(MAX_SCORE, f"It did its part on what {guilty} left wrong.", blame=guilty)


def _faults(scene: Scene) -> Iterator[str]:
    """Agents before whose action was wrong."""
    for step in scene.earlier:
        words = step.messages[-1].content.rpartition(WORDS_MARK)[2].split()
        if step.reply.content != _join(follow(DUTIES[step.agent], words)):
            yield step.agent


def _words(scene: Scene) -> list[str]:
    return scene.step.messages[-1].content.rpartition(WORDS_MARK)[2].split()


def _join(words: list[str]) -> str:
    return " ".join(words)


def _explain(agent: str, words: list[str], written: str) -> str:
    """Name a duty that was not followed, or an instruction that was and is no duty, where one explains the action."""
    duties = DUTIES[agent]
    for duty in duties:
        if written == _join(follow([one for one in duties if one != duty], words)):
            return f"It does not do what it should: “{duty}”"
    for other in INSTRUCTIONS:
        if other not in duties and written == _join(follow([*duties, other], words)):
            return f"It does what nobody asks of it: “{other}”"
    return f"It does not do what it should: “{duties[0]}” “{duties[1]}”"
