"""The coach `desk-lines`: whether an agent said what it should, and whether its prompt let it."""

from __future__ import annotations

from mappa_core import MAX_SCORE, NOBODY, Coach, Scene, Verdict
from mappa_gepa.desk.team import RIGHT, offered_lines

WRONG_POINTS = 0.0


class DeskCoach(Coach):
    """Judges every action on its own, by rule."""

    async def score(self, scene: Scene) -> Verdict:
        """Judge by rule; the reason names the line that the prompt does not offer, if that is why."""
        agent, said = scene.step.agent, scene.step.reply.content.strip()
        right, prompt = RIGHT[agent], scene.step.messages[-1].content
        if said == right:
            return Verdict.scored(MAX_SCORE, "That is what it should say.", blame=NOBODY)
        if right not in offered_lines(prompt):
            return Verdict.scored(WRONG_POINTS, f"Its prompt lacks the line “{right}”", blame=agent)
        reason = f"It said “{said}” and should say “{right}”"
        return Verdict.scored(WRONG_POINTS, reason, blame=agent, correction=right)
