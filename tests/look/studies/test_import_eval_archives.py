"""Eval logs of inspect_ai: by its own library where it is installed, else plain ones alone. The real library is tried
in the ring of frameworks."""

import io
import json
import sys
import zipfile
from types import ModuleType

import pytest

from mappa.look.importing.eval_archives import read_eval_archive
from mappa_core import InputError

HEADER = {"eval": {"task": "t"}}
SAMPLE = {"id": "s1", "messages": [{"role": "user", "content": "?"}]}
MAX_BYTES = 10_000


def archive(tmp_path, *, method=zipfile.ZIP_DEFLATED):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as file:
        file.writestr("header.json", json.dumps(HEADER))
        file.writestr("samples/s1_epoch_1.json", json.dumps(SAMPLE))
    path = tmp_path / "log.eval"
    path.write_bytes(packed.getvalue())
    return path


@pytest.fixture
def library(monkeypatch):
    """A library that says what it is asked for."""
    module = ModuleType("inspect_ai.log")
    asked = []

    class Log:
        def model_dump_json(self):
            return json.dumps({**HEADER, "samples": [SAMPLE, SAMPLE]})

    def read_eval_log(content, **options):
        asked.append((content.read()[:2], options))
        return Log()

    module.read_eval_log = read_eval_log
    monkeypatch.setitem(sys.modules, "inspect_ai", ModuleType("inspect_ai"))
    monkeypatch.setitem(sys.modules, "inspect_ai.log", module)
    module.asked = asked
    return module


def test_the_library_reads_where_it_is_installed(tmp_path, library):
    assert read_eval_archive(archive(tmp_path), max_bytes=MAX_BYTES)["samples"] == [SAMPLE, SAMPLE]
    ((content, options),) = library.asked
    assert content == b"PK" and options["resolve_attachments"] is True


def test_what_the_library_makes_of_a_strange_log_is_said(tmp_path, library):
    library.read_eval_log = lambda *_, **__: {}["header"]
    with pytest.raises(InputError, match=r"log.eval: no eval log .* KeyError: 'header'"):
        read_eval_archive(archive(tmp_path), max_bytes=MAX_BYTES)


def test_an_archive_is_bounded_before_the_library_reads_it(tmp_path, library):
    path = archive(tmp_path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("samples/s2.json", " " * 5_000)
    with pytest.raises(InputError, match="it unpacks to more than 2,000 bytes"):
        read_eval_archive(path, max_bytes=2_000)
    assert library.asked == []


def test_without_the_library_plain_archives_are_read_and_others_name_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    path = archive(tmp_path, method=zipfile.ZIP_STORED)
    assert read_eval_archive(path, max_bytes=MAX_BYTES)["samples"] == [SAMPLE]
    # As the library writes by default: Zstandard, the method 93.
    content = path.read_bytes()
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        parts = content.split(mark)
        content = mark.join([parts[0], *(p[: place - 4] + b"\x5d\x00" + p[place - 2 :] for p in parts[1:])])
    path.write_bytes(content)
    with pytest.raises(InputError, match="only its own library reads: pip install inspect_ai"):
        read_eval_archive(path, max_bytes=MAX_BYTES)
