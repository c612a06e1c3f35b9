"""The words of the house: those of the field, each name with one owner, sentences that are read once."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    ROOT / "mappa_core",
    ROOT / "mappa",
    *(file.parent / file.parent.name for file in sorted(ROOT.glob("plugins/*/pyproject.toml"))),
]

BANNED_PROSE: Mapping[str, str] = {
    r"\bwhoever\b": "name the role: the caller, the process that writes",
    r"\bhangs? on\b(?! forever)|\bhung on\b": "depends on",
    r"\bwherefore\b": "why, therefore",
    r"\b(?:is|are|was|were|be|been|being) told\b(?! (?:from|apart))": "receives, is passed, records",
    r"\bwho is told\b": "receives",
    r"\bcrying wolf\b": "false alarms, alpha spending",
    r"\bworth of doubt\b": "pseudo-observations, prior strength",
    r"\bturnstiles?\b": "wave scheduler",
    r"\bwardens?\b": "fork server",
    r"\bcages?\b|\bcaged\b": "sandbox",
    r"\bfleets?\b": "Ray actors",
    r"\bsheets? of evidence\b": "rendered exhibits",
    r"\band so\.(?:\s|$)": "say what happens",
    r"\bof now\b": "current",
    r"\bsays? nothing of\b": "does not constrain",
    r"\bwhat (?:there )?is told\b": "events, records",
    r"\bcomes? to, in\b": "name the value",
}
"""Expressions that docstrings and comments do without, and what to write in their place."""

BANNED_NAMES: Mapping[str, str] = {
    r"^(?:told|asked|found|weighed|drawn|made|kept|wanted|gathered|dealt|pinned|summed|demonstrated|revealed|given|heard"
    r"|said|seen|owed|named|spent|judged|parted|taken|shown|written|answered|ran|played)$": "a noun or a verb",
    r"^(?:most|least|longest|fewest|largest|biggest)_": "max_ or min_",
    r"_(?:told|asked|wanted)$": "a noun or a verb",
    r"^(?:keep_on|calls_again|hand_on)$": "use, retry, publish",
    r"(?i)turnstile|warden|cage(?!ory)|fleet|^kit$|toolkit$": "a term of the field, not a metaphor",
}
"""Public names of classes, functions, constants and fields that are not used, and what to use in their place."""

NAMES_THAT_STAY: Mapping[str, str] = {
    "kept": "a field that a package of files states",
    "made": "a figure of `mappa observe --json`",
    "judged": "a field of a process of the estimators' proof: whether the coach judges it",
}
"""Exceptions of `BANNED_NAMES`, and why."""

PARTICIPLES_THAT_STAY: Mapping[str, str] = {
    "scored": "Verdict.scored: named as the status that the verdict has, which is stored",
    "abstained": "Verdict.abstained: as above",
    "failed": "Verdict.failed: as above",
    "setting": "a noun",
    "unlearned": "the command `mappa dsbench unlearned`",
}
"""Functions and methods of one word that end as a participle does, and why."""

VAGUE_LOOP_VARIABLES = frozenset({"one"})
"""Names of loop variables that do not say what is looped over."""

STILL_VAGUE = ("mappa/cli", "mappa/look", "plugins/mappa_dsbench", "plugins/mappa_gepa", "plugins/mappa_mathchat")
"""Folders whose loops still have such names."""

SEVERAL_OWNERS: Mapping[str, str] = {
    "main": "entry points of programs",
    "command": "each module of commands exports its own under this name",
}
"""Names of functions and classes that several modules of one distribution may define. Hook functions may, too."""


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted(package.rglob("*.py")) if "templates" not in path.parts]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, strings below fields, and comments, with their lines."""
    for node in ast.walk(ast.parse(text)):
        for part in body if isinstance(body := getattr(node, "body", None), list) else ():
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                yield part.lineno, part.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def public_names(node: ast.Module | ast.ClassDef) -> Iterator[tuple[ast.stmt, str]]:
    """Names that a module or a class defines, those inside of its classes included."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part, part.name
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part, part.target.id
        elif isinstance(part, ast.Assign):
            yield from ((part, target.id) for target in part.targets if isinstance(target, ast.Name))
        if isinstance(part, ast.ClassDef) and not part.name.startswith("_"):
            yield from public_names(part)


def in_code(*patterns: str) -> Iterator[tuple[str, ast.stmt, str, str]]:
    """Public names that match a pattern: where they are, their node, the name, and the pattern."""
    expressions = {pattern: re.compile(pattern) for pattern in patterns}
    for path in modules():
        for node, name in public_names(ast.parse(path.read_text())):
            for pattern, expression in expressions.items():
                if not name.startswith("_") and expression.search(name):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}", node, name, pattern


def test_docstrings_and_comments_say_it_as_the_field_does():
    expressions = {re.compile(pattern, re.IGNORECASE): advice for pattern, advice in BANNED_PROSE.items()}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]} (write instead: {advice})"
        for path in modules()
        for line, text in prose(path.read_text())
        for expression, advice in expressions.items()
        for match in expression.finditer(" ".join(text.split()))
    ]
    assert found == []


def test_public_names_are_those_of_the_field():
    found = [
        f"{where} (use instead: {BANNED_NAMES[pattern]})"
        for where, _, name, pattern in in_code(*BANNED_NAMES)
        if name not in NAMES_THAT_STAY
    ]
    assert found == []


def test_functions_are_named_by_verbs_or_nouns():
    functions = [
        where
        for where, node, name, _ in in_code(r"^[a-z]{2,}(?:ed|ing)$")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any(re.search("property|fixture", ast.unparse(one)) for one in node.decorator_list)
        and name not in PARTICIPLES_THAT_STAY
    ]
    assert functions == [], "a function does something: give it a verb"


def vague_loops(text: str) -> Iterator[int]:
    """Lines with a loop or a comprehension whose variable does not say what it is."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name) and name.id in VAGUE_LOOP_VARIABLES:
                    yield name.lineno


def test_a_loop_variable_is_named_for_the_thing():
    vague = {path.relative_to(ROOT): list(vague_loops(path.read_text())) for path in modules()}
    exempt = {path for path in vague if any(path.is_relative_to(folder) for folder in STILL_VAGUE)}
    assert [f"{path}:{line}" for path, lines in vague.items() if path not in exempt for line in lines] == []
    clean = [folder for folder in STILL_VAGUE if not any(vague[path] for path in exempt if path.is_relative_to(folder))]
    assert clean == [], "take these folders out of STILL_VAGUE"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_public_class_or_function_has_one_owner(package):
    owners = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        if "templates" in path.parts:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                owners[node.name].append(str(path.relative_to(package)))
    shared = {name: places for name, places in owners.items() if len(places) > 1}
    assert {k: v for k, v in shared.items() if k not in SEVERAL_OWNERS and not k.startswith("mappa_")} == {}


def test_every_exception_is_still_needed():
    defined = {name for path in modules() for _, name in public_names(ast.parse(path.read_text()))}
    assert {*NAMES_THAT_STAY, *PARTICIPLES_THAT_STAY, *SEVERAL_OWNERS} <= defined
