"""The kinds of measured values that a session only keeps and shows. Each is declared beside the record it contains."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


MAX_RECENT_RESULTS = 32
"""The maximum number of results of one kind that a session can request again."""


@dataclass(frozen=True)
class ResultKind(Generic[K, V]):
    """A kind of measured values, each with a key, such as a config or the name of a group.

    Attributes:
        name: A unique name.
        max_kept: The number of values that a session keeps, the newest; None for all. The session requests an older
            value again when it is needed.
    """

    name: str
    max_kept: int | None = None
