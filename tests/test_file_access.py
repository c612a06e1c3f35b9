"""Files of runs, which a stranger may have made, are opened in one way: by `mappa_core.files`, `safe_files` and
`safe_sqlite`. A module that opens files by itself opens others, and this list says which."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

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


OTHERS: Mapping[str, str] = {
    "mappa/cli/new": "a new package of the user",
    "mappa/config/compose.py": "config files that the user named, perhaps pipes of a shell, and recipes of packages",
    "mappa/look/cli/export.py": "the folder of a model that was exported just now",
    "mappa/look/dataset": "a new folder that becomes an export",
    "mappa/look/demo": "a run that is shipped with the package, from memory",
    "mappa/hatch_build.py": "pages of the checkout that is built, in a new temporary folder",
    "mappa/look/importing/eval_archives.py": "an archive in memory",
    "mappa/look/manual.py": "pages of the package",
    "mappa/look/manual_search.py": "a database in memory",
    "mappa/look/sweep.py": "a config in a new temporary folder",
    "mappa/store/marks.py": "the key in the user's own folder, and marks of a known length, as regular files",
    "mappa/training/peak_memory.py": "what the kernel tells of a process",
    "mappa/testing": "fakes and recorded answers of tests",
    "mappa/training/examples.py": "chat data that the user named",
    "mappa_core/coaching": "prompts of the package and rubrics that the user named",
    "mappa_core/files.py": "the one way",
    "mappa_core/safe_files.py": "the one way",
    "mappa_core/safe_sqlite.py": "the one way",
    "mappa_core/safe_walk.py": "folders by descriptors",
    "mappa_core/tools/owned_folder.py": "temporary folders by descriptors",
    "mappa_core/tools/prompt_templates.py": "prompts of packages, and those that the user named",
    "mappa_core/tools/scratch.py": "programs of workflows, which are no content of an archive",
    "mappa_core/tools/task_files.py": "links in a new workspace",
    "plugins/mappa_coach_evidence/mappa_coach_evidence/weights_file.py": "a file that the user named",
    "plugins/mappa_dsbench/mappa_dsbench/coach/reference_programs": "programs of the package",
    "plugins/mappa_dsbench/mappa_dsbench/contracts": "programs of the package, and what runs in the sandbox",
    "plugins/mappa_dsbench/mappa_dsbench/embedded": "data sets of packages and their cache",
    "plugins/mappa_dsbench/mappa_dsbench/grading": "truth of the user, and files of agents by descriptors",
    "plugins/mappa_dsbench/mappa_dsbench/published": "data sets that the user downloaded",
    "plugins/mappa_engine/mappa_engine/adapters.py": "a new folder that becomes an export",
    "plugins/mappa_engine/mappa_engine/checkpoint.py": "new files of a checkpoint, and those that were checked before",
    "plugins/mappa_engine/mappa_engine/cluster/actors": "folders of Ray, which this process made",
    "plugins/mappa_engine/mappa_engine/cluster/samplers/server.py": "adapters in a new temporary folder",
    "plugins/mappa_engine/mappa_engine/gguf_model.py": "a model that the user named, and its form in the user's cache",
    "plugins/mappa_engine/mappa_engine/model_shape.py": "a model that the user named",
    "plugins/mappa_engine/mappa_engine/node.py": "limits that the kernel tells",
    "plugins/mappa_engine/mappa_engine/tiny": "a new model",
    "plugins/mappa_gateway/mappa_gateway/launchers.py": "files of a program in a new temporary folder",
    "plugins/mappa_gateway/mappa_gateway/workflow.py": "a text that the user named",
    "plugins/mappa_mathchat/mappa_mathchat": "problems that the user downloaded, and a null device",
    "plugins/mappa_sandbox/mappa_sandbox": "the sandbox, which has descriptors and rules of its own",
    "plugins/mappa_sandboxfusion/mappa_sandboxfusion": "a sandbox elsewhere, whose files are copied by descriptors",
}
"""Modules and packages that open files of another kind, and which."""


def owner(path: Path) -> str | None:
    where = str(path.relative_to(ROOT))
    return next((name for name in OTHERS if where == name or where.startswith(f"{name}/")), None)


def test_files_of_runs_are_opened_in_one_way():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in CODE
        if owner(path) is None
        for line, what in opened_by_path(ast.parse(path.read_text()))
    ]
    assert wrong == [], "use mappa_core.files, or say in OTHERS which files these are"


def test_the_list_of_other_files_names_what_opens_some():
    used = {owner(path) for path in CODE if any(opened_by_path(ast.parse(path.read_text())))}
    assert set(OTHERS) - used == set()


@pytest.mark.parametrize(
    "code",
    [
        "open(folder / 'run.db')", "(folder / 'summary.json').read_text()", "path.open('rb')", "path.open(mode='r')",
        "path.open(encoding='utf-8')", "shutil.copytree(one, other)", "sqlite3.connect(path)", "os.open(path, flags)",
        "safe_open(path, framework='pt')",
    ],
)  # fmt: skip
def test_another_way_is_found(code):
    assert list(opened_by_path(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["runs.open(folder)", "await tool.open()", "RunFolder.open(path)", "files(__name__).joinpath('x').read_text()"],
)
def test_what_is_no_file_of_a_run_is_left_alone(code):
    assert not list(opened_by_path(ast.parse(code)))
