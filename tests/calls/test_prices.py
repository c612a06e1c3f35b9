"""Costs by hand. What is not known is None, never 0."""

from types import SimpleNamespace

import pytest

from mappa_core import Usage
from mappa_core.calls.options import Price, charged_price

DEAR = Price(input=3.0, output=15.0, cached=0.3)
PLAIN = Price(input=2.0, output=8.0)


def used(prompt: int | None, completion: int | None, cached: int | None) -> Usage:
    return Usage(calls=1, prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


@pytest.mark.parametrize(
    ("price", "usage", "usd"),
    [
        # 1,000,000 x 3 + 1,000,000 x 15, per million
        (DEAR, used(1_000_000, 1_000_000, 0), 18.0),
        # 200 x 3 + 800 x 0.3 + 50 x 15 = 600 + 240 + 750
        (DEAR, used(1000, 50, 800), 1590e-6),
        # all of the prompt in the cache: 1000 x 0.3
        (DEAR, used(1000, 0, 1000), 300e-6),
        # no price of its own for what is cached: 1000 x 2 + 50 x 8
        (PLAIN, used(1000, 50, 800), 2400e-6),
        (PLAIN, used(1000, 50, None), 2400e-6),
        (Price(input=0.0, output=0.0), used(1000, 50, None), 0.0),
        (Price(input=1.0, output=1.0, cached=0.0), used(10, 10, 10), 10e-6),
    ],
)
def test_cost_by_hand(price, usage, usd):
    assert price.cost(usage) == pytest.approx(usd)


@pytest.mark.parametrize(
    ("price", "usage"),
    [
        (DEAR, used(None, 50, 0)),
        (DEAR, used(1000, None, 0)),
        (DEAR, used(1000, 50, None)),
        (PLAIN, used(None, None, None)),
    ],
)
def test_cost_is_unknown_if_a_needed_count_is_unknown(price, usage):
    assert price.cost(usage) is None


def test_thinking_is_part_of_the_completion_and_not_paid_twice():
    usage = Usage(calls=1, prompt_tokens=0, completion_tokens=100, cached_tokens=0, thinking_tokens=90)
    assert DEAR.cost(usage) == pytest.approx(1500e-6)


def test_cost_of_a_batch_by_hand():
    half, no_batches = SimpleNamespace(price_share=0.5), None
    assert charged_price(SimpleNamespace(price=DEAR, batch_api=half)) == Price(input=1.5, output=7.5, cached=0.15)
    assert charged_price(SimpleNamespace(price=PLAIN, batch_api=half)) == Price(input=1.0, output=4.0)
    assert charged_price(SimpleNamespace(price=DEAR, batch_api=no_batches)) == DEAR
    assert charged_price(SimpleNamespace(price=None, batch_api=half)) is None
    assert charged_price(SimpleNamespace()) is None
