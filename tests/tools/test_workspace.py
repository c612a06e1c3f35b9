import hashlib
import os
import resource
import socket
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import Completion, Message, Step, TaskError, ToolError, ToolResult
from mappa_core.safe_walk import remove_tree
from mappa_core.sandbox import FileChange
from mappa_core.tools.workspace import FolderWorkspace, file_lineage


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "archive"


@pytest.fixture
def workspace(tmp_path, archive):
    return FolderWorkspace(tmp_path / "work" / "t1", archive)


def test_created_changed_and_deleted_files_are_told_once(workspace):
    a, b = workspace.path / "a.txt", workspace.path / "sub" / "b.txt"
    b.parent.mkdir()
    a.write_bytes(b"one")
    b.write_bytes(b"two")
    assert workspace.files == ("a.txt", "sub/b.txt")
    assert workspace.changes() == (
        FileChange(path="a.txt", kind="created", size=3, sha256=sha(b"one")),
        FileChange(path="sub/b.txt", kind="created", size=3, sha256=sha(b"two")),
    )
    assert workspace.changes() == ()
    a.write_bytes(b"more")
    b.unlink()
    assert workspace.changes() == (
        FileChange(path="a.txt", kind="changed", size=4, sha256=sha(b"more")),
        FileChange(path="sub/b.txt", kind="deleted"),
    )


def test_a_write_within_the_same_tick_with_the_same_size_is_seen(workspace):
    path = workspace.path / "a"
    for content in (b"0", b"1", b"2", b"3"):
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(content)
        assert [change.sha256 for change in workspace.changes()] == [sha(content)]


def test_a_time_stamp_set_back_hides_nothing(workspace):
    path = workspace.path / "a"
    path.write_bytes(b"one")
    os.utime(path, (1, 1))
    workspace.changes()
    path.write_bytes(b"two")
    os.utime(path, (1, 1))
    assert [change.kind for change in workspace.changes()] == ["changed"]


def test_touching_a_file_changes_nothing(workspace):
    path = workspace.path / "a"
    path.write_bytes(b"one")
    workspace.changes()
    os.utime(path, (1, 1))
    path.chmod(0o600)
    assert workspace.changes() == ()


def test_links_and_special_files_are_not_followed(workspace, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("planted")
    (workspace.path / "link").symlink_to(secret / "key")
    (workspace.path / "folder").symlink_to(secret)
    (workspace.path / "dangling").symlink_to("nowhere")
    os.mkfifo(workspace.path / "fifo")
    (workspace.path / os.fsdecode(b"bad\xff")).write_text("x")
    (workspace.path / "real").write_text("x")
    assert workspace.files == ("real",)
    assert [change.path for change in workspace.changes()] == ["real"]
    assert workspace.irregular_files() == (
        "bad\\udcff (its name is not UTF-8)",
        "dangling (symbolic link)",
        "fifo (FIFO)",
        "folder (symbolic link)",
        "link (symbolic link)",
    )


def test_a_file_replaced_by_a_link_counts_as_deleted(workspace):
    path = workspace.path / "a"
    path.write_text("x")
    workspace.changes()
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert [change.kind for change in workspace.changes()] == ["deleted"]


def test_contents_are_archived_once_by_hash(workspace, archive):
    (workspace.path / "a").write_bytes(b"same")
    (workspace.path / "b").write_bytes(b"same")
    workspace.changes()
    kept = [path for path in archive.rglob("*") if path.is_file()]
    assert [path.name for path in kept] == [sha(b"same")] and kept[0].read_bytes() == b"same"


def test_changes_can_be_done_again_elsewhere_and_are_not_reported(workspace, archive, tmp_path):
    (workspace.path / "sub").mkdir()
    (workspace.path / "sub" / "a").write_bytes(b"1")
    (workspace.path / "b").write_bytes(b"2")
    first = workspace.changes()
    (workspace.path / "sub" / "a").write_bytes(b"3")
    (workspace.path / "b").unlink()
    second = workspace.changes()
    again = FolderWorkspace(tmp_path / "again", archive)
    again.restore(first)
    assert (again.path / "b").read_bytes() == b"2"
    again.restore(second)
    assert again.files == ("sub/a",) and (again.path / "sub" / "a").read_bytes() == b"3"
    assert again.changes() == ()
    (again.path / "sub" / "a").write_bytes(b"4")
    assert [change.kind for change in again.changes()] == ["changed"]


def test_a_file_that_became_a_folder_and_back_is_restored(workspace, archive, tmp_path):
    steps = []
    (workspace.path / "x").write_bytes(b"1")
    steps.append(workspace.changes())
    (workspace.path / "x").unlink()
    (workspace.path / "x").mkdir()
    (workspace.path / "x" / "y").write_bytes(b"2")
    steps.append(workspace.changes())
    (workspace.path / "x" / "y").unlink()
    (workspace.path / "x").rmdir()
    (workspace.path / "x").write_bytes(b"3")
    steps.append(workspace.changes())
    again = FolderWorkspace(tmp_path / "again", archive)
    for changes, files in zip(steps, [("x",), ("x/y",), ("x",)], strict=True):
        again.restore(changes)
        assert again.files == files
    assert (again.path / "x").read_bytes() == b"3" and again.changes() == ()


def test_a_content_that_is_missing_or_damaged_cannot_be_restored(workspace, archive, tmp_path):
    (workspace.path / "a").write_bytes(b"one")
    changes = workspace.changes()
    with pytest.raises(ToolError, match=r"'a': its content .* is not in None"):
        FolderWorkspace(tmp_path / "bare").restore(changes)
    kept = archive / sha(b"one")[:2] / sha(b"one")
    kept.write_bytes(b"other")
    with pytest.raises(ToolError, match="is damaged"):
        FolderWorkspace(tmp_path / "again", archive).restore(changes)
    kept.unlink()
    with pytest.raises(ToolError, match="is not in"):
        FolderWorkspace(tmp_path / "third", archive).restore(changes)


@pytest.mark.parametrize("path", ["../out", "/etc/out", "link/out", "a/../../out", ".."])
def test_nothing_is_restored_outside_of_the_folder(workspace, tmp_path, path):
    (workspace.path / "link").symlink_to(tmp_path)
    with pytest.raises(ToolError, match=r"leads out of its folder|is a symbolic link"):
        workspace.restore([FileChange(path=path, kind="deleted")])


names = st.sampled_from(["a", "b", "c/d", "c/e"])


@given(rounds=st.lists(st.dictionaries(names, st.one_of(st.none(), st.binary(max_size=3)), max_size=4), max_size=5))
def test_restoring_every_change_gives_the_same_files(tmp_path_factory, rounds):
    root = tmp_path_factory.mktemp("w")
    workspace = FolderWorkspace(root / "one", root / "archive")
    history = []
    for files in rounds:
        for name, content in files.items():
            path = workspace.path / name
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
        history += workspace.changes()
    again = FolderWorkspace(root / "two", root / "archive")
    again.restore(history)
    assert {name: (again.path / name).read_bytes() for name in again.files} == {
        name: (workspace.path / name).read_bytes() for name in workspace.files
    }
    assert again.changes() == ()


def step(number: int, *results: tuple[FileChange, ...]) -> Step:
    message = Message(role="assistant", content="")
    completion = Completion(text="", prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    return Step(
        id=f"s{number}",
        agent="a",
        turn=0,
        position=number,
        policy="p",
        messages=(),
        reply=message,
        completion=completion,
        results=tuple(ToolResult(tool="python", status="ok", files=files) for files in results),
    )


def test_lineage_lists_the_changes_of_each_file_by_step():
    made = FileChange(path="a", kind="created", size=1, sha256="1")
    changed = FileChange(path="a", kind="changed", size=1, sha256="2")
    other = FileChange(path="b", kind="created", size=1, sha256="3")
    gone = FileChange(path="a", kind="deleted")
    steps = [step(0, (made,), (changed,)), step(1), step(2, (gone, other))]
    assert file_lineage(steps) == {"a": (("s0", made), ("s0", changed), ("s2", gone)), "b": (("s2", other),)}
    assert file_lineage([]) == {}


# --- what a program may leave behind ----------------------------------------------------------------------------------


def test_special_file_is_reported_by_its_kind_until_removed(workspace):
    (workspace.path / "one\nline.csv").symlink_to("/etc/passwd")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(workspace.path / "sock"))
    assert workspace.irregular_files() == ()
    workspace.changes()
    assert workspace.irregular_files() == ("one\\nline.csv (symbolic link)", "sock (socket)")
    (workspace.path / "sock").unlink()
    workspace.changes()
    assert workspace.irregular_files() == ("one\\nline.csv (symbolic link)",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_named_and_not_opened(workspace):
    os.mknod(workspace.path / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    assert workspace.changes() == () and workspace.irregular_files() == ("null (character device)",)


def test_a_folder_swapped_for_a_link_is_not_entered(workspace, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "key").write_text("planted")
    (workspace.path / "sub").mkdir()
    (workspace.path / "sub" / "key").write_text("own")
    workspace.changes()
    (workspace.path / "sub" / "key").unlink()
    (workspace.path / "sub").rmdir()
    (workspace.path / "sub").symlink_to(tmp_path / "out")
    assert workspace.changes() == (FileChange(path="sub/key", kind="deleted"),)
    assert workspace.irregular_files() == ("sub (symbolic link)",)


def test_a_workspace_that_was_removed_or_swapped_for_a_link_is_empty(workspace, tmp_path):
    (workspace.path / "a").write_text("x")
    workspace.changes()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "key").write_text("planted")
    workspace.path.rename(tmp_path / "moved")
    workspace.path.symlink_to(tmp_path / "out")
    assert workspace.changes() == (FileChange(path="a", kind="deleted"),)
    assert workspace.files == ()


def deepen(folder: Path, levels: int, name: str) -> None:
    """Folders in folders, made as a program would: by going down."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


@contextmanager
def few_descriptors(count: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_folders_without_end_are_looked_into_as_far_as_paths_go_and_can_be_removed(workspace):
    deepen(workspace.path, 1200, "d")
    deepen(workspace.path, 3000, "long" * 50)
    (workspace.path / "z").write_text("x")
    with few_descriptors(100):
        paths = [change.path for change in workspace.changes()]
        assert paths == ["d/" * 1200 + "bottom", "z"]
        (left,) = workspace.irregular_files()
        assert left.startswith("longlong") and left.endswith("(its path is too long)")
        remove_tree(workspace.path)
    assert not workspace.path.exists()


def test_a_fault_of_the_machine_is_no_missing_file(workspace):
    (workspace.path / "a").write_text("x")
    workspace.changes()
    with few_descriptors(0), pytest.raises(ToolError, match="Too many open files"):
        workspace.changes()
    assert workspace.changes() == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_reported_and_can_be_removed(workspace):
    (workspace.path / "a").write_text("x")
    (workspace.path / "a").chmod(0)
    for name, mode in (("closed", 0), ("listed", 0o400)):
        (workspace.path / name).mkdir()
        (workspace.path / name / "b").write_text("x")
        (workspace.path / name).chmod(mode)
    assert workspace.changes() == ()
    assert workspace.irregular_files() == (
        "a (cannot be read)",
        "closed (folder that cannot be opened)",
        "listed (folder that cannot be opened)",
    )
    remove_tree(workspace.path)
    assert not workspace.path.exists()


def test_a_folder_is_removed_with_all_that_is_in_it_and_nothing_that_links_lead_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    doomed = tmp_path / "doomed"
    (doomed / "a" / "b").mkdir(parents=True)
    (doomed / "a" / "b" / "file").write_text("x")
    (doomed / "a" / "link").symlink_to(tmp_path / "kept")
    (doomed / "c").mkdir(mode=0)
    os.mkfifo(doomed / "fifo")
    remove_tree(doomed)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").exists()
    (tmp_path / "alias").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "alias")
    remove_tree(tmp_path / "never was")
    assert (tmp_path / "kept" / "file").exists()


# --- files of the task ------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("train.csv", "test.csv"):
        (tmp_path / "data" / name).write_text(name)
    return tmp_path / "data"


@pytest.fixture
def given_files(tmp_path, archive, data):
    return FolderWorkspace(
        tmp_path / "given", archive, {"train.csv": data / "train.csv", "in/test.csv": data / "test.csv"}
    )


def test_files_of_the_task_stand_in_the_workspace_and_are_no_change(given_files, data):
    assert (given_files.path / "in" / "test.csv").read_text() == "test.csv"
    assert (given_files.path / "train.csv").readlink() == data / "train.csv"
    assert given_files.files == ("in/test.csv", "train.csv")
    assert given_files.inputs == {"train.csv": data / "train.csv", "in/test.csv": data / "test.csv"}
    assert given_files.changes() == () and given_files.irregular_files() == ()


def test_a_file_of_the_task_by_a_link_is_the_file_that_it_leads_to(tmp_path, data):
    (tmp_path / "alias").symlink_to(data / "train.csv")
    workspace = FolderWorkspace(tmp_path / "given", inputs={"a": tmp_path / "alias"})
    assert (workspace.path / "a").readlink() == data / "train.csv"


def test_change_of_a_linked_file_is_reported_and_never_touches_the_original(given_files, data):
    train, test = given_files.path / "train.csv", given_files.path / "in" / "test.csv"
    train.unlink()
    train.write_text("mine")
    assert given_files.changes() == (FileChange(path="train.csv", kind="changed", size=4, sha256=sha(b"mine")),)
    test.unlink()
    test.symlink_to("/etc/passwd")
    assert given_files.changes() == (FileChange(path="in/test.csv", kind="deleted"),)
    assert given_files.irregular_files() == ("in/test.csv (symbolic link)",)
    train.unlink()
    train.symlink_to(data / "train.csv")
    assert given_files.changes() == (FileChange(path="train.csv", kind="deleted"),)
    assert given_files.files == () and given_files.changes() == ()
    assert [path.read_text() for path in sorted(data.iterdir())] == ["test.csv", "train.csv"]


def test_restoring_never_writes_through_a_link(given_files, data, tmp_path, archive):
    (given_files.path / "train.csv").unlink()
    (given_files.path / "train.csv").write_text("mine")
    (given_files.path / "in" / "test.csv").unlink()
    changes = given_files.changes()
    again = FolderWorkspace(tmp_path / "again", archive, given_files.inputs)
    again.restore(changes)
    assert again.files == ("train.csv",) and (again.path / "train.csv").read_text() == "mine"
    assert again.changes() == () and again.irregular_files() == ()
    assert [path.read_text() for path in sorted(data.iterdir())] == ["test.csv", "train.csv"]


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("../out", "train.csv", "'../out' must be named by a plain relative path"),
        ("/out", "train.csv", "'/out' must be named"),
        ("a//b", "train.csv", "'a//b' must be named"),
        ("", "train.csv", "'' must be named"),
        ("a", "nowhere.csv", "'a' is not there: .*nowhere.csv"),
        ("a", ".", "'a' is no regular file"),
    ],
)
def test_a_file_of_the_task_that_cannot_be_used_is_named(tmp_path, data, name, file, message):
    with pytest.raises(TaskError, match=message):
        FolderWorkspace(tmp_path / "given", inputs={name: data / file})
    assert not (tmp_path / "given").exists()


def test_a_file_of_the_task_cannot_lie_in_another(tmp_path, data):
    with pytest.raises(TaskError, match="'a/b/c' would lie in the task file 'a'"):
        FolderWorkspace(tmp_path / "given", inputs={"a": data / "train.csv", "a/b/c": data / "test.csv"})
