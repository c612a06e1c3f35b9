"""Runs on the server: compiles archive.zip with the Python there into compiled.zip, once for all calls."""

from __future__ import annotations

import os
import py_compile
import tempfile
import zipfile

UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH


def main() -> None:
    with (
        zipfile.ZipFile("archive.zip") as archive,
        zipfile.ZipFile("compiled.zip", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        with tempfile.TemporaryDirectory() as folder:
            text, code = os.path.join(folder, "text"), os.path.join(folder, "code")
            for name in archive.namelist():
                with open(text, "wb") as file:
                    file.write(archive.read(name))
                py_compile.compile(text, code, dfile=name, doraise=True, invalidation_mode=UNCHECKED)
                target.write(code, f"{name}c")


main()
