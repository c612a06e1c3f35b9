"""`mappa sandbox run`."""

import json

import pytest

from mappa.cli import main
from mappa_sandbox import choose_sandbox


@pytest.fixture
def program(tmp_path):
    def program(code: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(code)
        return str(path)

    return program


def test_shows_output_ending_sandbox_and_files(program, capsys):
    path = program("import sys\nprint('hello', sys.argv[1:])\nopen('made', 'w').write('ab')\nsys.exit('oops')")
    assert main(["sandbox", "run", path, "--", "one", "--two"]) == 0
    out, err = capsys.readouterr()
    assert out == "hello ['one', '--two']\n"
    lines = err.splitlines()
    assert lines[0] == "oops" and lines[2] == "created made (2 bytes)"
    assert lines[1].startswith("error, exit code 1, ") and " s in " in lines[1]


def test_prints_the_result_as_json(program, capsys):
    assert main(["sandbox", "run", program("print(1)"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["stdout"], result["exit_code"]) == ("ok", "1\n", 0)
    assert result["sandbox"] in ("bubblewrap", "landlock")


def test_takes_the_limits_of_a_recipe(program, capsys):
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE)[0])"
    assert main(["sandbox", "run", program(code), "--plugin", "mathchat"]) == 0
    assert capsys.readouterr().out == f"{1 << 20}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tool", "pythn", "--plugin", "mathchat"], "the recipe has no such tool. Did you mean python?"),
        (["--tool", "other"], "--tool other: only a recipe has other tools than python: name one with --plugin"),
        (["--plugin", "nowhere"], "nowhere"),
    ],
)
def test_what_is_asked_for_and_not_there_is_named(program, capsys, arguments, message):
    assert main(["sandbox", "run", program(""), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys):
    assert main(["sandbox", "run", str(tmp_path / "missing.py")]) == 2
    assert "cannot read the program" in capsys.readouterr().err
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    assert main(["sandbox", "run", str(tmp_path / "binary.py")]) == 2


def test_without_a_sandbox_nothing_is_run(program, capsys, monkeypatch):
    monkeypatch.setattr(choose_sandbox, "PREFERRED_BACKENDS", ())
    assert main(["sandbox", "run", program("print('ran')")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "allow_unsafe=true" in err


def test_a_name_of_a_file_is_one_line(program, capsys):
    names = ["a\nok, exit code 0, 0.00 s in bubblewrap", "b\x1b[2J\rcreated c (1 bytes)", "d\u2028created e (1 bytes)"]
    code = f"for name in {names!r}:\n    open(name, 'w').close()\nraise SystemExit(3)"
    assert main(["sandbox", "run", program(code)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 + len(names) and lines[0].startswith("error, exit code 3")
    assert lines[1] == "created a\\nok, exit code 0, 0.00 s in bubblewrap (0 bytes)"
    assert [line[:9] for line in lines[1:]] == ["created a", "created b", "created d"]
