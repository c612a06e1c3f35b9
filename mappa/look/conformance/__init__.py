"""Exact test, by enumeration, that the gradient of an advantage estimator is the policy gradient.

A *decision process* here is a team whose policies are tables with known probabilities. It is so small that only a few
hundred batches can be sampled, so the expected gradient of an estimator is a finite sum. `EstimatorContract` needs
pytest; the names are listed in `__init__.pyi`.
"""

from contextlib import suppress

import lazy_loader

with suppress(ImportError):
    import pytest

    # A failed clause shows the values that it compares.
    pytest.register_assert_rewrite(f"{__name__}.estimator_contract")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
