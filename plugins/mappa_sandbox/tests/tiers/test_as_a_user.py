"""The attacks once more, as an ordinary user: what root keeps from programs is not what keeps them in.

The tests run in a mount namespace of their own, in which folders on the way to the interpreter and to the repository
that only root may enter are replaced by ones that hold nothing but these two.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[3]
USER = 12345
ALL_MAY_ENTER = 0o001


def is_private(folder: Path) -> bool:
    return not folder.stat().st_mode & ALL_MAY_ENTER


def needed() -> list[Path]:
    """What the tests read, as files and folders that everybody may read once the way to them is free."""
    roots = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1], REPOSITORY}
    roots = {root for root in roots if not any(other in root.parents for other in roots)}
    return sorted(path for root in roots for path in (root.iterdir() if is_private(root) else [root]))


def passable(paths: list[Path], hold: str) -> Iterator[str]:
    """Lines of a shell script that free the way to `paths`; `hold` is an empty folder."""
    private = {path: [above for above in reversed(path.parents) if is_private(above)] for path in paths}
    closed = {path: above[0] for path, above in private.items() if above}
    for number, path in enumerate(closed):
        place = f"{hold}/{number}"
        yield f"{'mkdir' if path.is_dir() else 'touch'} {place} && mount --bind {shlex.quote(str(path))} {place}"
    for folder in sorted(set(closed.values())):
        yield f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(folder))}"
    for number, path in enumerate(closed):
        place, above = shlex.quote(str(path)), shlex.quote(str(path.parent))
        make = f"mkdir -p {place}" if path.is_dir() else f"mkdir -p {above} && touch {place}"
        yield f"{make} && mount --bind {hold}/{number} {place}"


def as_user(command: list[str], hold: str) -> list[str]:
    """`command` in such a namespace, as an ordinary user."""
    drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", *command]
    script = "\n".join(["set -e", "umask 022", *passable(needed(), hold), f"exec {shlex.join(drop)}"])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A folder of that user, where its temporary files and reports go."""
    folder = Path(tempfile.mkdtemp(prefix="mappa-user-"))
    os.chown(folder, USER, USER)
    yield folder
    subprocess.run(["rm", "-rf", "--", folder], check=True)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("files", "which", "least"),
    [
        (["test_attacks.py"], "not slow", 50),
        pytest.param(["test_attacks.py", "test_disk_limits.py"], "not soak", 60, marks=pytest.mark.soak),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already")
def test_everything_holds_as_an_ordinary_user_too(
    files: list[str], which: str, least: int, own: Path, tmp_path: Path
) -> None:
    missing = [name for name in ("unshare", "setpriv", "mount") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} of util-linux is not here")
    environment = {
        "HOME": str(own),
        "TMPDIR": str(own),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "PLANTED_AT_START": "planted-secret-00000000000000ff",
        **{name: os.environ[name] for name in ("CI", "MAPPA_REQUIRE_TIERS") if name in os.environ},
    }
    if subprocess.run(as_user(["true"], str(tmp_path)), env=environment, capture_output=True).returncode:
        pytest.skip("this root may make no mounts of its own")
    tests = [str(HERE / name) for name in files]
    options = ["-p", "no:cacheprovider", "-q", "-m", which, f"--basetemp={own}/pytest", f"--junitxml={own}/report.xml"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    with tempfile.TemporaryDirectory(dir=tmp_path) as hold:
        done = subprocess.run(as_user(command, hold), env=environment, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    suites = list(ElementTree.parse(own / "report.xml").getroot().iter("testsuite"))
    tests_run, skipped = (sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "skipped"))
    assert tests_run - skipped > least, f"{tests_run} tests, of which {skipped} were skipped: {done.stdout[-3000:]}"
