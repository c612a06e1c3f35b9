"""Deterministic draws, and the words that replace real names.

Draws are based on SHA-256 and not on a random generator, so that no library can change them between versions. The words
of the two splits are disjoint, so that the names of the held-out tables never occur in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

_TRAINING = (
    "alder anvil arbor aspen atlas badge basil beacon bellow birch bonnet bramble breeze bridle brook buckle cabin "
    "canvas cedar chisel cinder clover cobble copse cotton cradle crest cricket dagger dapple delta dune easel elder "
    "ember fable falcon fennel ferry fiddle flint forge garnet gavel ginger glade goblet gravel hammer harbor hazel "
    "heron hollow ivory jasper jetty kettle ladder lantern larch lichen lilac linen locket magnet mallet maple marble "
    "meadow mitten mortar mosaic nectar needle nettle nimbus oasis onyx orchid otter paddle parcel pebble pepper "
    "pigeon pillar pistol plume pocket poplar prism pulley quartz quiver rafter raven ribbon ripple rocket rudder "
    "saddle sable satin shovel shutter sickle"
)
_HELD_OUT = (
    "acorn apron arrow badger banjo barrel basket blanket bobbin bottle bugle burrow button candle carpet castle "
    "cello chalk cherry chime cloak comet coral crater cymbal daisy dove drum eagle fern finch flute fountain garden "
    "gazelle gong grotto guitar hedge helmet hinge hornet igloo jacket jungle kayak lagoon lemon lever lotus lyre "
    "mantle mirror moth mustard napkin oboe olive osprey oyster palace panther parrot peach pendant piano pillow "
    "planet pony poppy puffin quill rabbit radish robin rose salmon sandal scarf silver spindle sponge squash stable "
    "swan tablet teapot thistle tiger timber topaz trumpet tulip turnip turret velvet violin walnut wander whistle "
    "willow zephyr zither"
)
TRAINING_WORDS = tuple(_TRAINING.split())
HELD_OUT_WORDS = tuple(_HELD_OUT.split())


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws under one seed; `what` tells the draws of one seed apart."""

    seed: str

    def digest(self, what: str, *parts: object) -> str:
        """64 hexadecimal digits."""
        return sha256("\x1f".join([self.seed, what, *map(str, parts)]).encode()).hexdigest()

    def number(self, what: str, *parts: object, below: int) -> int:
        return int(self.digest(what, *parts), 16) % below

    def order(self, what: str, length: int) -> list[int]:
        """Return the positions 0 … length - 1 in a random order."""
        begun = sha256(f"{self.seed}\x1f{what}\x1f".encode())

        def digest(at: int) -> bytes:
            one = begun.copy()
            one.update(b"%d" % at)
            return one.digest()

        return sorted(range(length), key=digest)

    def shuffle(self, what: str, values: Sequence[str]) -> list[str]:
        return [values[at] for at in self.order(what, len(values))]


class Naming:
    """Neutral names of one table, each used once."""

    def __init__(self, draw: Draw, words: Sequence[str]) -> None:
        self._words = draw.shuffle("words", words)
        self._draw = draw
        self._taken = 0

    def _next(self) -> str:
        at, self._taken = self._taken, self._taken + 1
        rounds, place = divmod(at, len(self._words))
        word = self._words[place]
        return word if not rounds else f"{word}_{self._words[(place + rounds) % len(self._words)]}"

    def columns(self, count: int) -> list[str]:
        """Return names for columns, all in one of three styles: `word`, `word_word`, `word_0` …"""
        style = self._draw.number("style", below=3)
        if style == 2 or count > 40:
            stem = self._next()
            return [f"{stem}_{at}" for at in self._draw.order("numbers", count)]
        if style == 1:
            return [f"{self._next()}_{self._next()}" for _ in range(count)]
        return [self._next() for _ in range(count)]

    def identifier(self) -> str:
        """Return a name for the id column, in one of three common styles."""
        word = self._next()
        return (f"{word}_id", f"{word.title()}Id", f"ID_{word}")[self._draw.number("identifier", below=3)]

    def values(self, count: int) -> list[str]:
        """Return names for the categories of one column."""
        return [self._next() for _ in range(count)]
