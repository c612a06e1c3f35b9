"""Folders of a killed process are removed by the next one; those of living processes, and of others, stay."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mappa_core.tools.owned_folder import OWNER, OwnedFolder, own_folder

HOLD = """
import sys, tempfile
from mappa_core.tools.owned_folder import OwnedFolder
tempfile.tempdir = sys.argv[1]
folder = OwnedFolder("mappa-work-")
(folder.path / "w").mkdir()
(folder.path / "w" / "left").write_text("x")
(folder.path / "w").chmod(0)
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def hold(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(temporary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_by_the_next(temporary):
    (killed, left), (living, kept) = hold(temporary), hold(temporary)
    with killed, living:
        killed.kill()
        assert killed.wait() == -signal.SIGKILL and left.is_dir()
        folder = OwnedFolder("mappa-work-")
        assert not left.exists() and (kept / OWNER).exists() and folder.path.is_dir()
        living.communicate()
    folder.close()
    assert set(temporary.iterdir()) == {kept}


def test_a_folder_that_nobody_owned_or_of_another_prefix_stays(temporary):
    unowned, other = temporary / "mappa-work-old", temporary / "mappa-other-x"
    for path in (unowned, other):
        path.mkdir()
    os.close(own_folder(other))
    (temporary / "mappa-work-link").symlink_to(other)
    OwnedFolder("mappa-work-").close()
    assert unowned.is_dir() and (other / OWNER).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_stays(temporary):
    path = temporary / "mappa-work-theirs"
    path.mkdir()
    os.close(own_folder(path))
    os.chown(path, 12345, 12345)
    OwnedFolder("mappa-work-").close()
    assert (path / OWNER).exists()
