"""Build the sdist and the wheel of every distribution into dist/, and look into what was built.

Wheels are made from the sdists, so that whoever packages from an sdist gets the same. Needs build, hatchling and twine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from email import message_from_bytes
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from version import ROOT, current

DIST = ROOT / "dist"
APPLICATION = ROOT / "mappa"


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    return build([ROOT, APPLICATION, *(file.parent for file in sorted(ROOT.glob("plugins/*/pyproject.toml")))])


def build(projects: Sequence[Path]) -> int:
    """Build the projects in these folders. Returns the exit code."""
    for folder in projects:
        # Without isolation: the build backend is the one that is installed here, fetched once for all.
        python("build", "--no-isolation", "--outdir", str(DIST), str(folder))
    python("twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))
    wrong = [fault for folder in projects for fault in faults(folder)]
    for fault in wrong:
        print(fault, file=sys.stderr)
    for file in sorted(DIST.iterdir()):
        print(f"{file.stat().st_size / 1024:8,.0f} KiB  {file.relative_to(ROOT)}")
    return 1 if wrong else 0


def python(module: str, *arguments: str) -> None:
    """Run a module; what it says is shown only where it fails."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        raise SystemExit(f"python -m {module} {' '.join(arguments)} failed")


def faults(folder: Path) -> Iterator[str]:
    """What is wrong with the sdist and the wheel of the project in `folder`."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    stem = f"{project['name'].replace('-', '_')}-{current()}"
    package = package_of(folder, project["name"])
    with tarfile.open(DIST / f"{stem}.tar.gz") as sdist:
        names = {name.removeprefix(f"{stem}/") for name in sdist.getnames()}
    inside = (
        (name.removeprefix(f"{package.name}/") for name in sources(package)) if package == folder else sources(package)
    )
    needed = {"LICENSE", "README.md", "PKG-INFO", "pyproject.toml", *inside}
    yield from (f"{stem}.tar.gz has no {name}" for name in sorted(needed - names))
    yield from wheel_faults(f"{stem}-py3-none-any.whl", stem, project, sources(package))


def wheel_faults(name: str, stem: str, project: dict[str, Any], sources: set[str]) -> Iterator[str]:
    """What is wrong with a wheel: its files are those of the package, and its metadata say the licence."""
    info = f"{stem}.dist-info"
    with ZipFile(DIST / name) as wheel:
        names = {one for one in wheel.namelist() if not one.startswith(info)}
        metadata = message_from_bytes(wheel.read(f"{info}/METADATA"))
        licence = wheel.read(f"{info}/licenses/LICENSE")
    yield from (f"{name} has no {one}" for one in sorted(sources - names))
    yield from (f"{name} has {one}, which is no part of the package" for one in sorted(names - sources))
    if not any(one.endswith("/py.typed") and one.count("/") == 1 for one in names):
        yield f"{name} has no py.typed"
    if licence != (ROOT / "LICENSE").read_bytes():
        yield f"{name} has another LICENSE"
    said = {"Name": project["name"], "Version": current(), "License-Expression": "MIT", "License-File": "LICENSE"}
    yield from (f"{name} says {key}: {metadata[key]}" for key, value in said.items() if metadata[key] != value)


def package_of(folder: Path, name: str) -> Path:
    """The folder of a project's package: beside its pyproject.toml, or, of the application, the folder itself."""
    package = folder / name.replace("-", "_")
    return package if package.is_dir() else folder


def sources(package: Path) -> set[str]:
    """Paths of the package's files, beginning with its name."""
    of_project = {package / name for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py")}
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    names = {str(path.relative_to(package.parent)) for path in files if path not in of_project}
    # What a build adds: the pages, which lie outside the package.
    return names | {"mappa/look/manual.md"} if package == APPLICATION else names


if __name__ == "__main__":
    raise SystemExit(main())
