import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.errors import ToolError
from mappa_core.records import Completion, FileChange, Message, Step, ToolResult
from mappa_core.tools.workspace import FolderWorkspace, lineage


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
    with pytest.raises(ToolError, match="leads out of the workspace"):
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


def test_lineage_tells_which_step_did_what_to_each_file():
    made = FileChange(path="a", kind="created", size=1, sha256="1")
    changed = FileChange(path="a", kind="changed", size=1, sha256="2")
    other = FileChange(path="b", kind="created", size=1, sha256="3")
    gone = FileChange(path="a", kind="deleted")
    steps = [step(0, (made,), (changed,)), step(1), step(2, (gone, other))]
    assert lineage(steps) == {"a": (("s0", made), ("s0", changed), ("s2", gone)), "b": (("s2", other),)}
    assert lineage([]) == {}
