"""Models in one GGUF file, converted once to a folder in the usual form (safetensors, tokenizer.json, chat template).

The folder lies in the user's cache, named after the file's content. It is compared with the file before it gets its
name, so no reader ever sees half a model or a wrong one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from mappa_engine.errors import ModelError

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_FORM = 1
"""Version of the converted form: raise it when what is written changes."""
_SENTENCE = "The capital of France is"
_SAMPLES = ("The 3 boxes hold 1,250 nails each.", "def total(x):\n    return x * 2\n", "naïve café → 42 °C 日本")


def convert_gguf(file: Path, spec: str) -> Path:
    """Return the folder of the model in `file`, converted if it was not before (half a minute for 135 M weights).

    Weights are written as float32, which holds what every quantisation means without rounding. Raises ModelError if the
    file is no GGUF of a model that transformers knows, or if what was written is not what the file holds.
    """
    folder = _cache() / f"{file.stem}-{_digest(file, spec)}-{_FORM}"
    if folder.is_dir():
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{spec}: to read {file.name} takes the package gguf: pip install 'mappa-engine[gguf]'")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                aside = folder.with_name(f"{folder.name}.partial")
                shutil.rmtree(aside, ignore_errors=True)
                _convert(file, aside, spec)
                aside.rename(folder)
    except OSError as error:
        raise ModelError(
            f"{spec}: the converted model cannot be kept in {folder.parent}: {error.strerror or error}. Free some "
            "space there, or set XDG_CACHE_HOME to another folder."
        ) from error
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mappa" / "models"


def _digest(file: Path, spec: str) -> str:
    try:
        with file.open("rb") as source:
            if source.read(len(_MAGIC)) != _MAGIC:
                raise ModelError(f"{spec}: {file} is no GGUF file: it does not begin with {_MAGIC.decode()}")
            source.seek(0)
            return hashlib.file_digest(source, "sha256").hexdigest()[:16]
    except OSError as error:
        raise ModelError(f"{spec}: {file} cannot be read: {error.strerror}") from error


def _convert(file: Path, aside: Path, spec: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    where: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    with _bad_file(file, spec):
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
    _forget_quantisation(model)
    if tokenizer.chat_template is None:
        raise ModelError(
            f"{spec}: {file.name} has no chat template to show agents their prompts with: use another model"
        )
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    _check(aside, file, model, tokenizer, spec)


@contextmanager
def _bad_file(file: Path, spec: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    # The readers of gguf and transformers check little: a damaged file fails anywhere in them.
    except Exception as error:
        raise ModelError(
            f"{spec}: {file.name} cannot be read as a model ({type(error).__name__}: {error}). Check that the file is "
            "complete and of an architecture that transformers reads from GGUF."
        ) from error


def _forget_quantisation(model: Any) -> None:
    """Make `model` an ordinary one: transformers refuses to save what it believes to be quantised."""
    del model.hf_quantizer, model.config.quantization_config
    model.is_quantized = False


def _check(folder: Path, file: Path, model: Any, tokenizer: Any, spec: str) -> None:
    """Compare the folder with the file: tensors, tokens, template and one greedy sentence."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    again = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, dtype=torch.float32)
    words = AutoTokenizer.from_pretrained(folder)
    held, given = again.state_dict(), model.state_dict()
    differ = sorted(name for name in held.keys() | given.keys() if not _equal(held, given, name))
    if differ:
        raise ModelError(f"{spec}: {len(differ)} tensors changed when {file.name} was converted, first {differ[0]}")
    listed = _listed_tokens(file)
    if words.convert_ids_to_tokens(list(range(len(listed)))) != listed:
        raise ModelError(f"{spec}: the converted tokenizer has other tokens than {file.name} lists")
    if words.chat_template != tokenizer.chat_template:
        raise ModelError(f"{spec}: the converted tokenizer has another chat template than {file.name}")
    for text in _SAMPLES:
        ids = words(text, add_special_tokens=False)["input_ids"]
        if ids != tokenizer(text, add_special_tokens=False)["input_ids"] or words.decode(ids) != text:
            raise ModelError(f"{spec}: the converted tokenizer does not give back the text {text!r}")
    inputs = tokenizer(_SENTENCE, return_tensors="pt")["input_ids"]
    said = (each.generate(inputs, do_sample=False, max_new_tokens=12) for each in (model, again))
    if not torch.equal(*said):
        raise ModelError(f"{spec}: the converted model goes on otherwise than {file.name} after {_SENTENCE!r}")


def _equal(held: Mapping[str, Any], given: Mapping[str, Any], name: str) -> bool:
    import torch

    return name in held and name in given and torch.equal(held[name], given[name])


def _listed_tokens(file: Path) -> list[str]:
    from gguf import GGUFReader

    listed: list[str] = GGUFReader(file).fields["tokenizer.ggml.tokens"].contents()
    return listed
