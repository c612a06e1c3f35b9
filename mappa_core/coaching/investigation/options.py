"""Options of the coach `investigator`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.config.rules import at_least, check_fields
from mappa_core.config.schema import Use
from mappa_core.errors import ConfigError

OF_SINGLE_ANSWERS = ("rubrics", "batch", "correction", "budget")
"""Options of a coach that asks a model which do not apply to an investigation."""


@dataclass
class InvestigatorOptions:
    model: Use = field(default_factory=Use)
    """The coach of a provider (`openai`) with its options: the model that investigates."""
    calls: int = 16
    """Maximum number of questions to the model about one trajectory: the last ones ask for its answer, and questions
    that send an invalid reply back count. Attempts after a fault of the provider do not."""
    characters: int = 120_000
    """Maximum characters of the log that it may read of one trajectory, beside the outline."""

    def check(self) -> None:
        check_fields(self, at_least(2, "calls"), at_least(1000, "characters"))
        chosen = self.model.options
        if isinstance(chosen, Mapping):
            return  # Its package is not installed, which is reported apart.
        if not isinstance(chosen, LLMCoachOptions):
            raise ConfigError(f"model: {self.model.use} asks no model; name the coach of a provider, such as openai")
        plain = LLMCoachOptions()
        for name in OF_SINGLE_ANSWERS:
            if getattr(chosen, name) != getattr(plain, name):
                raise ConfigError(f"model: an investigation does not use its option {name}; leave it out")
