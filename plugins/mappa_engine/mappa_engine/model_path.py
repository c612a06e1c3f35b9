"""Resolve the name of a model to a folder on disk or an id of the Hugging Face hub. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from mappa_engine.errors import ModelError

_PACKAGE = "package:"


def resolve_model_path(spec: str) -> str:
    """Return the folder on disk, or the Hugging Face id, of `spec` (id, folder, or `package:NAME/PATH`)."""
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
    if not folder.is_dir():
        raise ModelError(f"{spec}: there is no folder {folder}. Name a model folder or a Hugging Face id.")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{spec}: {folder} holds no weights (*.safetensors). Save the model with safetensors.")
    return str(folder)
