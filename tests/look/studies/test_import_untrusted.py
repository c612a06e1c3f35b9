"""Logs are files of strangers: what cannot be handled is one line that names the place, and no traceback."""

from __future__ import annotations

import gzip
import json
import zipfile

import pytest

from mappa.cli import main
from mappa.look.importing.documents import decode_embedded, read_documents
from mappa_core import InputError

DEEP = "[" * 100_000 + "]" * 100_000
CHAT = '{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "name": "a", "content": "4"}]}'
NESTED = CHAT[:-1] + f', "more": {DEEP}}}'
TWICE = CHAT[:-1] + ', "id": 1, "id": 2}'
PRETTY = json.dumps({"messages": [1]}, indent=1).replace("1", DEEP)


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("log.jsonl", f"{CHAT}\n{NESTED}\n", "log.jsonl, line 2: it is nested deeper than 64 levels"),
        ("log.json", NESTED, "log.json: it is nested deeper than 64 levels"),
        ("log.json", PRETTY, "log.json: it is nested deeper than 64 levels"),
        ("log.json", f"[\n{CHAT},\n{CHAT}", "log.json: it is no JSON: Expecting ',' delimiter at line 3"),
        ("log.json", f"{CHAT}\n{TWICE}\n", "log.json, line 2: a key occurs twice"),
    ],
    ids=["line", "whole", "pretty", "broken", "twice"],
)
def test_a_file_that_cannot_be_handled_is_one_line_and_exit_2(tmp_path, capsys, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    for one in (path, packed):
        assert main(["import", str(one), "--root", str(tmp_path / "runs")]) == 2
        error = capsys.readouterr().err
        assert said in error.replace(".gz", "")
        assert "Traceback" not in error
    assert not (tmp_path / "runs").exists()


def test_an_eval_log_whose_sample_is_nested_too_deep_is_refused(tmp_path):
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", "{}")
        archive.writestr("samples/1.json", DEEP)
    with pytest.raises(InputError, match="nested deeper"):
        read_documents([path])


def test_a_file_may_be_longer_than_the_reply_of_a_model(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps([{"text": "x" * 9_000_000}]))
    (one,) = read_documents([path])
    assert len(one.row["text"]) == 9_000_000


@pytest.mark.parametrize(
    "value, decoded",
    [('{"a": 1}', {"a": 1}), ("[1]", [1]), ("{a", "{a"), ("12", "12"), (DEEP, DEEP), (None, None), ([1], [1])],
    ids=["object", "list", "broken", "number", "deep", "none", "list itself"],
)
def test_what_stands_as_text_in_an_attribute_is_decoded_where_it_can_be(value, decoded):
    assert decode_embedded(value) == decoded


def test_arguments_of_a_call_that_are_nested_too_deep_are_no_arguments(tmp_path):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": ' + DEEP + "}"}}
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "name": "a", "content": "", "tool_calls": [call]}]
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"messages": said}))
    assert main(["import", str(path), "--root", str(tmp_path / "runs")]) == 0
