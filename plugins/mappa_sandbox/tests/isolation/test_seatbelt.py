import ctypes
import os
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_sandbox.isolation import kernel, seatbelt

STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def unquoted(text):
    """What a reader of the profile's language makes of a string."""
    (inner,) = STRING.fullmatch(text).groups()
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t", "r": "\r"}.get(match[1], match[1]), inner)


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f") | st.sampled_from('"\\\n\t\r()'), min_size=1))
def test_a_path_is_one_string_that_reads_as_the_path(path):
    assert unquoted(seatbelt.quote(path)) == path


@pytest.mark.parametrize("letter", ["\0", "\x01", "\x1b", "\x7f"])
def test_a_path_with_a_control_character_is_refused(letter):
    with pytest.raises(ValueError, match="control character"):
        seatbelt.quote(f"/a{letter}b")


def made(tmp_path, *, readable=("packages",), hidden=("packages/hidden",), writable=("work",)):
    def below(names):
        return [str(tmp_path / name) for name in names]

    return seatbelt.build_profile(writable=below(writable), readable=below(readable), hidden=below(hidden))


def test_everything_is_denied_first_and_networks_are_never_allowed(tmp_path):
    lines = made(tmp_path).splitlines()
    assert lines[:2] == ["(version 1)", "(deny default)"]
    assert not re.search(r"network|ipc|iokit|\(allow default|system-", "\n".join(lines))


def test_what_is_hidden_is_denied_after_what_is_readable_and_before_the_workspace(tmp_path):
    text = made(tmp_path)
    rules = [
        f'(allow file-read* process-exec* (subpath "{tmp_path}/packages"))',
        f'(deny file-read* process-exec* (subpath "{tmp_path}/packages/hidden"))',
        f'(allow file-read* file-write* process-exec* (subpath "{tmp_path}/work"))',
    ]
    positions = [text.index(rule) for rule in rules]
    assert positions == sorted(positions)


def test_only_the_workspace_and_devices_are_written_to(tmp_path):
    written = [line for line in made(tmp_path).splitlines() if "file-write" in line and line.startswith("(allow")]
    assert [re.search(STRING, line)[1] for line in written] == [
        str(tmp_path / "work"),
        "/dev/null",
        "/dev/full",
    ]


def test_a_hostile_name_adds_no_rule(tmp_path):
    name = 'x"))\n(allow default) ; ("'
    text = made(tmp_path, writable=(name,))
    assert text.count("\n") == made(tmp_path).count("\n")
    assert not any(line.startswith("(allow default") for line in text.splitlines())


def test_links_are_resolved(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    text = made(tmp_path, writable=("link",))
    assert f'"{tmp_path}/real"' in text
    assert f'"{tmp_path}/link"' not in text


def fake_system(answer, reason=None):
    """The border to macOS: what its library would answer."""
    calls = []

    def sandbox_init(text, flags, error):
        calls.append((text, flags))
        ctypes.cast(error, ctypes.POINTER(ctypes.c_char_p))[0] = reason
        return answer

    return SimpleNamespace(sandbox_init=sandbox_init), calls


def test_the_profile_is_handed_over_as_text(monkeypatch):
    library, calls = fake_system(0)
    monkeypatch.setattr(kernel, "LIBC", library)
    seatbelt.apply_profile('(version 1)\n"ü"')
    assert calls == [(os.fsencode('(version 1)\n"ü"'), 0)]


def test_a_profile_that_is_not_accepted_is_an_error_with_the_reason(monkeypatch):
    library, _ = fake_system(-1, b"unbound variable: nonsense")
    monkeypatch.setattr(kernel, "LIBC", library)
    with pytest.raises(OSError, match="sandbox_init: unbound variable: nonsense"):
        seatbelt.apply_profile("(nonsense)")
