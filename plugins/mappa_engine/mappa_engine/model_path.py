"""Resolve the name of a model to a folder on disk or an id of the Hugging Face hub. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from mappa_engine.errors import ModelError
from mappa_engine.gguf_model import SUFFIX, convert_gguf

_PACKAGE = "package:"


def resolve_model_path(spec: str) -> str:
    """Return the folder on disk, or the Hugging Face id, of `spec`: an id, a folder, a GGUF file, or
    `package:NAME/PATH` for a folder or file inside an installed package. A GGUF file is converted once, to a folder of
    the user's cache."""
    if spec.startswith(_PACKAGE):
        package, _, path = spec.removeprefix(_PACKAGE).partition("/")
        top, *inside = package.split(".")
        # Found without an import: a checkpoint that somebody else made may name any package.
        found = importlib.util.find_spec(top) if top else None
        if found is None or not found.submodule_search_locations:
            raise ModelError(
                f"{spec}: the package {package} is not installed. Install the distribution that holds it, or "
                "name a folder or a model of the hub."
            )
        folder = Path(found.submodule_search_locations[0], *inside, path)
    else:
        folder = Path(spec).expanduser()
        named_like_a_path = spec.startswith((".", "~", "/")) or spec.count("/") > 1
        if not folder.exists() and not named_like_a_path:
            return spec
    if not folder.exists():
        raise ModelError(f"{spec}: there is no {folder}. Name a model folder, a GGUF file or a Hugging Face id.")
    if folder.is_dir() and any(folder.glob("*.safetensors")):
        return str(folder)
    return str(convert_gguf(_gguf_file(folder, spec), spec))


def _gguf_file(place: Path, spec: str) -> Path:
    """Return the one GGUF file that `place` is or, beside no other weights, holds."""
    files = [place] if place.is_file() else sorted(place.glob(f"*{SUFFIX}"))
    if not files:
        raise ModelError(
            f"{spec}: {place} holds no weights (*.safetensors, or one *{SUFFIX}). Save the model with safetensors."
        )
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{spec}: {place} holds {len(files)} models ({names}). Name one file.")
    return files[0]
