"""Files of runs are opened in one way: `mappa_core.files`, `safe_files`, `safe_sqlite` and the archive. What opens files by
itself opens others, and says which."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = sorted(
    path
    for folder in ("mappa_core", "mappa", "plugins")
    for path in (ROOT / folder).rglob("*.py")
    if "tests" not in path.relative_to(ROOT).parts
)
METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "touch", "copy_into", "hardlink_to", "symlink_to"}
FUNCTIONS = {
    "open", "os.open", "io.open", "gzip.open", "tarfile.open", "zipfile.ZipFile", "sqlite3.connect",
    "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.move", "shutil.rmtree",
    "os.link", "os.symlink", "os.truncate", "safe_open", "load_file", "save_file", "torch.load", "torch.save",
    "np.load", "np.save", "np.savez", "pickle.load",
}  # fmt: skip
"""What opens, copies or removes by a path; a class of one's own may have a method `open`, which has no mode."""


def opened_by_path(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every call that opens a file by its path, but for files of packages."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        receiver = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if receiver.startswith(("files(", "importlib.resources.files(")):
            continue
        has_mode = any(
            isinstance(one, ast.Constant) and isinstance(one.value, str) and set(one.value) <= set("rwaxbt+")
            for one in [*node.args[:1], *(word.value for word in node.keywords if word.arg == "mode")]
        )
        plain_open = method == "open" and (has_mode or {word.arg for word in node.keywords} & {"encoding", "newline"})
        if called in FUNCTIONS or method in METHODS or plain_open:
            yield node.lineno, called


if __name__ == "__main__":
    for path in CODE:
        for line, what in opened_by_path(ast.parse(path.read_text())):
            print(f"{path.relative_to(ROOT)}:{line}: {what}")
