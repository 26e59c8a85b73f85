"""What climbs of a whole set may keep for one another: where those that are finished ended, and where one stands."""

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

from robustmetric.attacks.base import Engine
from robustmetric.types import Embeddings


@runtime_checkable
class Memory(Protocol):
    """Climbs of a set by their number, with which a call that was cut goes on."""

    def recall(self, number: int) -> Embeddings | None:
        """What a climb made of the set; None where it is still to be made."""

    def note(self, number: int, embeddings: Embeddings) -> None:
        """Keep what a climb has made of the set."""


@runtime_checkable
class Way(Protocol):
    """The way that climbs of more and more steps have in common; see `trail.py`."""

    def on(self, engine: Engine, part: Hashable) -> Engine:
        """The engine, for this part of the set from where it stands."""
