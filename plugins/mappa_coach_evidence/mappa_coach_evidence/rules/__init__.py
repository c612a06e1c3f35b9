"""The rules. What their findings weigh was fitted on one half of a set of labelled failures: `weights.py`."""

from __future__ import annotations

from mappa_coach_evidence.findings import Rule
from mappa_coach_evidence.rules import answers, claims, programs, progress

RULES: tuple[Rule, ...] = (
    Rule(name="broken contract", check=programs.broken_contracts, explains_failure=False, beside_record=True),
    Rule(name="cut off", check=programs.cut_off_replies, explains_failure=False, beside_record=True),
    Rule(name="missing file", check=programs.missing_files, explains_failure=False, beside_record=True),
    Rule(name="failed program", check=programs.failed_programs, explains_failure=False, beside_record=True),
    Rule(name="repeated failure", check=programs.repeated_failures, explains_failure=False, beside_record=True),
    Rule(name="wrong sum", check=claims.wrong_sums, explains_failure=False, beside_record=True),
    Rule(name="contradicted output", check=claims.contradicted_outputs, explains_failure=False, beside_record=True),
    Rule(name="changed answer", check=claims.changed_answers, explains_failure=False, beside_record=True),
    Rule(name="lost task", check=answers.lost_task, explains_failure=True, beside_record=False),
    Rule(name="made-up value", check=answers.made_up_values, explains_failure=True, beside_record=False),
    Rule(name="computed value", check=answers.computed_values, explains_failure=True, beside_record=False),
    Rule(name="pretended check", check=answers.pretended_checks, explains_failure=True, beside_record=False),
    Rule(name="unproved claim", check=answers.unproved_claims, explains_failure=True, beside_record=False),
    Rule(name="admitted failure", check=claims.admitted_failures, explains_failure=True, beside_record=False),
    Rule(name="unrepaired failure", check=programs.unrepaired_failures, explains_failure=True, beside_record=False),
    Rule(name="unchecked program", check=programs.unchecked_programs, explains_failure=True, beside_record=False),
    Rule(name="recorded progress", check=progress.recorded_progress, explains_failure=True, beside_record=True),
)
