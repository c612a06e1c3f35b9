"""Tokens with which a chat template marks roles, calls and thinking, and text that only looks like them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from mappa_engine.errors import ModelError

_SENTINEL = "\U0010fffd"
"""Delimiter of the numbers that replace control tokens while a template is rendered: a private-use character."""
_ANCHOR = f"{_SENTINEL}anchor{_SENTINEL}"
"""Stands before a text that is tokenized alone: some tokenizers put a space before the first word of all."""
_NUMBER = re.compile(f"{_SENTINEL}([0-9]+){_SENTINEL}")


class ControlTokens:
    """Tokenizes what a template rendered, so that only the template writes control tokens.

    Control is every added token that is special or that the template writes, except whitespace: in many models role
    and think tags are added tokens like others. A single character is no control either, unless it is special: it
    marks nothing.
    """

    def __init__(self, tokenizer: Any, written: Iterable[str], *, model_name: str) -> None:
        """`written` is the source of the template and what it rendered. Raises ModelError if the tokenizer has no
        tokenizer.json."""
        if not tokenizer.is_fast:
            raise ModelError(
                f"{model_name}: its tokenizer has no tokenizer.json, without which text cannot be kept from forming "
                "control tokens. Convert it with transformers, or choose another model."
            )
        self._tokenizer = tokenizer
        self._model_name = model_name
        texts = list(written)
        self._ids = {
            number: token.content
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.content.strip()
            and (token.special or (len(token.content) > 1 and any(token.content in text for text in texts)))
        }
        longest_first = sorted(self._ids.values(), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._replaced = re.compile("|".join(map(re.escape, [*longest_first, _SENTINEL])))

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(self._ids)

    def replace(self, value: Any) -> tuple[Any, list[str]]:
        """Replace text that looks like a control token, in every string of a JSON value, by numbered placeholders.

        Return (value, text per number).
        """
        numbers: dict[str, int] = {}

        def replace_token(found: re.Match[str]) -> str:
            return f"{_SENTINEL}{numbers.setdefault(found.group(), len(numbers))}{_SENTINEL}"

        return _map_text(value, lambda text: self._replaced.sub(replace_token, text)), list(numbers)

    def tokenize(self, rendered: str, replaced: list[str]) -> list[int]:
        """Tokenize what a template rendered of a value in which text was `replaced`."""
        if not replaced:
            tokens = self._encode(rendered)
            # Equal for every template that was looked at. A normalizer or a merge can form a control token of a text
            # that does not look like one.
            if sum(token in self._ids for token in tokens) == len(self._control.findall(rendered)):
                return tokens
        found: list[int] = []
        usual, end = "", 0
        for control in [*self._control.finditer(rendered), None]:
            start = len(rendered) if control is None else control.start()
            segment = rendered[end:start]
            text = _NUMBER.sub(lambda number: replaced[int(number[1])], segment)
            if text == segment and self._ids.keys().isdisjoint(self._encode(text)):
                usual += text
            else:
                found += self._encode(usual) + self.spell_out(text)
                usual = ""
            if control is not None:
                usual += control.group()
                end = control.end()
        return found + self._encode(usual)

    def spell_out(self, text: str) -> list[int]:
        """Tokenize `text` into ordinary tokens, whatever it looks like."""
        tokens: list[int] = self._plain.encode(_ANCHOR + text, add_special_tokens=False).ids[1:]
        if self._ids.keys().isdisjoint(tokens) and self._plain.token_to_id(_ANCHOR) not in tokens:
            return tokens
        # The vocabulary holds the control token as a word, which its merges form.
        if len(text) == 1:
            raise ModelError(
                f"{self._model_name}: its tokenizer writes the text {text!r} as a control token only. Choose another "
                "model, or mend its tokenizer.json."
            )
        middle = len(text) // 2
        return self.spell_out(text[:middle]) + self.spell_out(text[middle:])

    def _encode(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    @cached_property
    def _plain(self) -> Any:
        """The tokenizer without control tokens, and with the anchor."""
        backend = self._tokenizer.backend_tokenizer
        state = json.loads(backend.to_str())
        for token in state["added_tokens"]:
            # The library splits special tokens only.
            token["special"] = token["id"] in self._ids
        kind = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        number = max([backend.get_vocab_size() - 1, *(token["id"] for token in state["added_tokens"])]) + 1
        state["added_tokens"].append({"id": number, "content": _ANCHOR, **kind})
        plain = type(backend).from_str(json.dumps(state))
        plain.encode_special_tokens = True
        plain.no_truncation()
        plain.no_padding()
        return plain


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to every string in the JSON value, keys included: an agent writes those of its arguments, too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_text(item, change) for key, item in value.items()}
    return [_map_text(item, change) for item in value] if isinstance(value, list | tuple) else value
