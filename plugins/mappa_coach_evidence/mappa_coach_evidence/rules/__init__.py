"""The rules. Hard ones accuse; what the findings of soft ones weigh stands in `weights.py`."""

from __future__ import annotations

from mappa_coach_evidence.findings import Rule
from mappa_coach_evidence.rules import answers, calls, claims, programs, progress, records

RULES: tuple[Rule, ...] = (
    Rule(name="broken contract", check=programs.broken_contracts, category="lost hand-off", precision=0.8),
    Rule(name="cut off", check=programs.cut_off_replies, category="wrong end", precision=0.8),
    Rule(name="missing file", check=programs.missing_files, category="lost hand-off", precision=0.8),
    Rule(name="wrong sum", check=claims.wrong_sums, category="miscalculation", precision=0.9),
    Rule(name="wrong date", check=claims.wrong_days, category="miscalculation", precision=0.8),
    Rule(name="contradicted output", check=claims.contradicted_outputs, category="misreading", precision=0.8),
    Rule(name="contradicted record", check=records.contradicted_records, category="misreading", precision=0.8),
    Rule(name="contradicted state", check=records.contradicted_states, category="misreading", precision=0.8),
    Rule(name="contradicted result", check=claims.contradicted_results, category="misreading", precision=0.8),
    Rule(name="claimed success", check=calls.claimed_successes, category="misreading", precision=0.8),
    Rule(name="wrong call", check=calls.wrong_calls, category="invalid call", precision=0.8),
    Rule(name="repeated call", check=calls.repeated_calls, category="repetition", precision=0.8),
    Rule(name="unavailable tool", check=calls.unavailable_tools, category="system failure", precision=0.8),
    Rule(name="changed answer", check=claims.changed_answers, category="miscalculation", beside_record=True),
    Rule(name="failed program", check=programs.failed_programs, category="miscalculation", beside_record=True),
    Rule(name="repeated failure", check=programs.repeated_failures, category="repetition", beside_record=True),
    Rule(name="lost task", check=answers.lost_task, category="misplanning"),
    Rule(name="made-up value", check=answers.made_up_values, category="invention"),
    Rule(name="computed value", check=answers.computed_values, category="miscalculation"),
    Rule(name="pretended check", check=answers.pretended_checks, category="no verification"),
    Rule(name="unproved claim", check=answers.unproved_claims, category="no verification"),
    Rule(name="admitted failure", check=claims.admitted_failures, category="wrong end"),
    Rule(name="unrepaired failure", check=programs.unrepaired_failures, category="no verification"),
    Rule(name="unchecked program", check=programs.unchecked_programs, category="no verification"),
    Rule(name="recorded progress", check=progress.recorded_progress, category="wrong end", beside_record=True),
)
