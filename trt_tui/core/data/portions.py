"""What is known of runs that memory does not suffice for; `trt_tui.core.data.fitted` finds it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Found:
    """What was found out about one kind of runs.

    Attributes:
        form: In which form the network is lowered, by its number.
        way: How that is run, by its number among the ways.
        rows: The most samples at a time; None for all of a feed.
        why: What did not suffice.
    """

    form: int = 0
    way: int = 0
    rows: int | None = None
    why: str = ""


class Portions:
    """What was found out in a session about runs that memory does not suffice for, by what is run."""

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}
        self._news: list[str] = []
        self._said: set[str] = set()

    def of(self, what: str) -> Found:
        """What is known of a kind of runs; to be changed by whoever runs them."""
        return self._found.setdefault(what, Found())

    def note(self, text: str) -> None:
        """Takes in what is to be said, once."""
        if text not in self._said:
            self._said.add(text)
            self._news.append(text)

    def news(self) -> Iterator[str]:
        """What there is to say since it was asked last."""
        while self._news:
            yield self._news.pop(0)
