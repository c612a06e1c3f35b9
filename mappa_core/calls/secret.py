"""API keys that are never printed."""

from __future__ import annotations

import os
import re
from typing import NoReturn

from mappa_core.calls.errors import one_line
from mappa_core.errors import ConfigError
from mappa_core.redaction import SecretForms, keep_secret


class Secret:
    """The value of an API key. It prints as its name, cannot be pickled or copied, and is read by `reveal` only."""

    __slots__ = ("_forms", "_name", "_value")

    def __init__(self, value: str, name: str) -> None:
        if not value:
            raise ValueError(f"{name} has no value: a key of no characters would be masked everywhere")
        # From here on it is masked in all that is written.
        keep_secret(name, value)
        self._value = value
        self._name = name
        self._forms = SecretForms(name, value)

    @classmethod
    def from_env(cls, variable: str, owner: str) -> Secret:
        """Read and strip an environment variable; `owner` says in messages who needs it (`the coach gemini`). Raises
        ConfigError, without a value in it, if it is unset or empty, or cannot be sent in a header."""
        if not os.environ.get(variable, "").strip():
            # Perhaps the key itself was written in place of the variable's name, so the message must not hold it.
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*", variable):
                raise ConfigError(f"{owner} needs the name of the environment variable that holds its key, not the key")
            raise ConfigError(f"{variable} is not set or empty: {owner} needs its key in this environment variable")
        secret = cls(os.environ[variable].strip(), variable)
        if not re.fullmatch("[!-~]+", secret._value):
            raise ConfigError(f"{variable} holds characters that no key has (white space or not ASCII): set it again")
        return secret

    def reveal(self) -> str:
        """Return the value. Only for the client that sends it."""
        return self._value

    def hide(self, text: str, limit: int = 500) -> str:
        """Return `text` as one line of at most `limit` characters with the value masked, for error messages."""
        # Masked before the line is cut, which could leave the beginning of a key.
        return one_line(self._forms.mask(text), limit)

    def scrub(self, text: str) -> str:
        """Return `text` with the value masked and otherwise unchanged, for answers, which are parsed and stored."""
        return self._forms.mask(text)

    def __repr__(self) -> str:
        return f"Secret({self._name})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{self!r} is not pickled or copied: pass on the name of its environment variable")
