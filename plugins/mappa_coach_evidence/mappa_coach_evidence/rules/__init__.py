"""The rules, in the order in which their findings decide who is blamed.

Order and confidences were fixed on one half of a set of labelled failures and are reported on the other half
(docs/evidence/blame.md). A confidence is (hits + 1) / (findings + 2) of decisive steps on the first half;
0.5 where that half holds no case.
"""

from __future__ import annotations

from mappa_coach_evidence.findings import Rule
from mappa_coach_evidence.rules import answers, claims, programs, progress

RULES: tuple[Rule, ...] = (
    Rule(name="broken contract", check=programs.broken_contracts, confidence=0.5, explains_failure=False),
    Rule(name="cut off", check=programs.cut_off_replies, confidence=0.5, explains_failure=False),
    Rule(name="missing file", check=programs.missing_files, confidence=0.5, explains_failure=False),
    Rule(name="wrong sum", check=claims.wrong_sums, confidence=0.5, explains_failure=False),
    Rule(name="contradicted output", check=claims.contradicted_outputs, confidence=0.5, explains_failure=False),
    Rule(name="lost task", check=answers.lost_task, confidence=0.75, explains_failure=True),
    Rule(name="recorded progress", check=progress.recorded_progress, confidence=0.39, explains_failure=True),
    Rule(name="pretended check", check=answers.pretended_checks, confidence=0.6, explains_failure=True),
    Rule(name="made-up value", check=answers.made_up_values, confidence=0.89, explains_failure=True),
    Rule(name="computed value", check=answers.computed_values, confidence=0.6, explains_failure=True),
    Rule(name="failed program", check=programs.failed_programs, confidence=0.5, explains_failure=False),
    Rule(name="repeated failure", check=programs.repeated_failures, confidence=0.5, explains_failure=False),
    Rule(name="changed answer", check=claims.changed_answers, confidence=0.5, explains_failure=False),
    Rule(name="unchecked program", check=programs.unchecked_programs, confidence=0.6, explains_failure=True),
    Rule(name="unproved claim", check=answers.unproved_claims, confidence=0.63, explains_failure=True),
)
