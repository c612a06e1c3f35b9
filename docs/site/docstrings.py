"""What the code says of itself: docstrings, strings below fields and constants, public names of a module."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any


def table_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def doc_of(owner: Any) -> str:
    """The docstring, unless it is the signature that dataclasses write."""
    said = inspect.getdoc(owner) or ""
    return "" if inspect.isclass(owner) and said.startswith(f"{owner.__name__}(") else said


def dataclass_docs(owner: type) -> Mapping[str, str]:
    """What is said of each field, by its name, those inherited included."""
    found: dict[str, str] = {}
    for one in reversed(owner.__mro__):
        if is_dataclass(one):
            found |= field_docs(inspect.getmodule(one), one.__name__)
    return found


@cache
def field_docs(module: Any, owner: str | None = None) -> Mapping[str, str]:
    """What the string below each assignment of a module, or of a class in it, says."""
    tree: ast.AST = ast.parse(inspect.getsource(module))
    if owner is not None:
        # Options of a transport's coach are put together from others and stand in no module: their parts do.
        classes = (one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == owner)
        tree = next(classes, ast.Module([], []))
    body = tree.body  # type: ignore[attr-defined]
    found = {}
    for assigned, said in pairwise(body):
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant) and isinstance(said.value.value, str):
            target = assigned.target if isinstance(assigned, ast.AnnAssign) else getattr(assigned, "targets", [None])[0]
            if isinstance(target, ast.Name):
                found[target.id] = inspect.cleandoc(said.value.value)
    return found


def exported_names(module: Any) -> list[str]:
    """The public names of a module, sorted as people look for them."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        tree = ast.parse(inspect.getsource(module))
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        listed = [alias.asname or alias.name for node in imports for alias in node.names if alias.asname]
    return sorted((name for name in listed if not name.startswith("_")), key=str.lower)


def first_sentence(module: Any, name: str) -> str:
    """The first sentence that is said of a public name."""
    return re.split(r"(?<=\.)\s", said_of(module, name).partition("\n\n")[0], maxsplit=1)[0]


def said_of(module: Any, name: str) -> str:
    """All that is said of a public name of a module: a class's or function's docstring, of another value the string
    below it or the comment behind it, where it is defined. Empty where nothing is."""
    value = getattr(module, name)
    if (inspect.isclass(value) or inspect.isfunction(value)) and (said := doc_of(value)):
        return said
    while module is not None:
        if name in (docs := field_docs(module)):
            return docs[name]
        if behind := re.search(rf"^{name}\b.*=.*  # (.+)$", inspect.getsource(module), re.MULTILINE):
            return behind[1]
        module = _origin(module, name)
    return ""


def _origin(module: Any, name: str) -> Any:
    """The module that a module has a name from, by its stub where there is one; None where it defines it."""
    file = Path(module.__file__)
    text = (file.with_suffix(".pyi") if file.with_suffix(".pyi").exists() else file).read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return importlib.import_module(f"{'.' * node.level}{node.module}", module.__package__)
    return None
