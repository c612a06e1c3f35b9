"""Nothing is lost without a counted note: generated logs of every format, against a walk that knows none of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from mappa.look.importing.content import ENCRYPTED
from mappa.look.importing.ledger import count_by_file
from mappa.look.importing.log_mapping import LogMapping
from mappa.look.importing.read_logs import read_logs
from tests.look.studies.import_forms import LOGS, Talk, name, talks, words

WORD = re.compile(r"(?:ask|txt|thk|arg|res|enc|img)-\d+")


@pytest.mark.parametrize("kind", LOGS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(talk=talks())
def test_every_word_of_a_log_is_in_the_run_or_noted(tmp_path: Path, kind: str, talk: Talk) -> None:
    form, write = LOGS[kind]
    rows = write(talk)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (log,), _ = read_logs([path], LogMapping(), None)
    (ledger,) = count_by_file([log]).values()
    there = {found for word in words(rows) for found in WORD.findall(word)}
    told = [
        text
        for act in log.acts
        for message in (*act.messages, act.reply)
        for text in (
            message.content,
            message.reasoning or "",
            *(json.dumps(dict(c.arguments)) for c in message.tool_calls),
        )
    ]
    told += [result.stdout for act in log.acts for _, result in act.results]
    kept = {found for text in told for found in WORD.findall(text)}
    lost = there - kept
    ciphers, pictures = {one for one in lost if one.startswith("enc")}, {one for one in lost if one.startswith("img")}
    assert not kept - there and lost == ciphers | pictures, (lost, rows)
    assert ledger.notes.get(ENCRYPTED, 0) == len(ciphers), ledger
    assert ledger.notes.get("images", 0) == len(pictures) == int(talk.picture), ledger
    hold_calls(log.acts, talk, failures=form.failures)
    assert (ledger.calls, ledger.results) == (calls := sum(len(turn.calls) for turn in talk.turns), calls)
    if form.thoughts:
        assert ledger.thoughts == sum(turn.thought for turn in talk.turns)


def hold_calls(acts, talk: Talk, *, failures: bool) -> None:
    """Every call has its name, its arguments with their numbers, its own answer, and whether that failed."""
    found = {call.name: (dict(call.arguments), result) for act in acts for call, result in act.results}
    for one in (call for turn in talk.turns for call in turn.calls):
        arguments, result = found.pop(name(one))
        assert arguments == one.arguments
        assert one.answer in result.stdout
        if failures:
            assert result.status == ("error" if one.failed else "ok")
    assert not found
