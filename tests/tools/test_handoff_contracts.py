from mappa_core import Role
from mappa_core.tools.handoff_contracts import find_breaches

ROLE = Role(brief="fits a model", needs=("train.csv", "plan.md"), produces=("model.pkl", "submission.csv"))


def test_missing_inputs_and_outputs_are_named():
    found = find_breaches("modeler", ROLE, ["train.csv"], ["train.csv", "model.pkl"])
    assert [(breach.agent, breach.kind, breach.path) for breach in found] == [
        ("modeler", "missing_input", "plan.md"),
        ("modeler", "missing_output", "submission.csv"),
    ]


def test_outputs_are_not_due_while_the_agent_has_turns_left():
    assert [breach.kind for breach in find_breaches("modeler", ROLE, ["train.csv"], None)] == ["missing_input"]


def test_an_input_that_the_agent_itself_removed_was_there():
    assert find_breaches("modeler", ROLE, ["train.csv", "plan.md"], ["model.pkl", "submission.csv"]) == ()


def test_a_role_without_a_contract_breaks_none():
    assert find_breaches("solver", Role(brief="solves"), [], []) == ()


def test_names_are_exact():
    assert find_breaches("a", Role(brief="", needs=("*.csv",)), ["a.csv"], [])[0].path == "*.csv"
