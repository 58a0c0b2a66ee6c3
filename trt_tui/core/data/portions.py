"""What is known of runs that memory does not suffice for; `trt_tui.core.data.fitted` finds it out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ON_HOST = "on the CPU"
"""The name of a level: what was to run on a device does not."""


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
    """What was found out in a session about runs that memory does not suffice for, by what is run.

    Attributes:
        crowded: Sessions of one kind of runs were freed for those of another: memory does not suffice for both.
    """

    def __init__(self) -> None:
        self.crowded = False
        self._found: dict[str, Found] = {}
        self._holders: list[tuple[str, weakref.WeakMethod[Callable[[], bool]]]] = []
        self._said: dict[str, str] = {}
        self._news: dict[str, str] = {}

    def of(self, what: str) -> Found:
        """What is known of a kind of runs; to be changed by whoever runs them."""
        return self._found.setdefault(what, Found())

    def held_by(self, what: str, free: Callable[[], bool]) -> None:
        """Takes in a method of whoever keeps something loaded for a kind of runs; it frees that, and says whether there
        was anything."""
        self._holders = [one for one in self._holders if one[1]() is not None] + [(what, weakref.WeakMethod(free))]

    def spare(self, what: str) -> bool:
        """Frees what is kept loaded for other kinds of runs, which is loaded again when they go on; whether there was
        anything."""
        methods = [method for other, reference in self._holders if other != what and (method := reference())]
        freed = any([method() for method in methods])
        self.crowded |= freed
        return freed

    def note(self, what: str, text: str) -> None:
        """Takes in what is to be said of a kind of runs."""
        if self._said.get(what) != text:
            self._said[what] = self._news[what] = text

    def news(self) -> Iterator[str]:
        """What there is to say since it was asked last, the latest of each kind of runs."""
        while self._news:
            what = next(iter(self._news))
            yield f"{what[:1].upper()}{what[1:]}: {self._news.pop(what)}"
