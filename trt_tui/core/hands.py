"""Who does what a measurement consists of: this process one thing after the other, or several processes.

A measurement makes an `Errand` and says with which items; `Hands` do it with each. The results are the same whoever
does it, and come in whatever order they are done.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Waits(Protocol):
    """There is nothing to do until ``ready`` returns True: a thread is at work."""

    @property
    def ready(self) -> Callable[[], bool]:
        """Whether there is."""


class Errand(Protocol[S_contra, Item_contra, T_co]):
    """What is done with each item.

    It is pickled, once for each process that does it; what it keeps from one item to the next is not.
    """

    def words(self, item: Item_contra) -> str:
        """What an item is, for people."""

    def do(self, subject: S_contra, item: Item_contra) -> Generator[Waits | None, None, T_co]:
        """Yields between two runs, or what it waits for; returns what came of the item, which is pickled too.

        Args:
            subject: What is open in the process: the same network, data and backends everywhere.
        """


class Hands(Protocol[S_co]):
    """Do errands."""

    def work(self, errand: Errand[S_co, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        """Yields an item with what came of it once that is known, and None in between.

        Whoever closes the iterator stops the work.

        Raises:
            TrtTuiError: an item failed.
        """

    def ready(self) -> bool:
        """Whether there is something to go on with; else `work` yields nothing but None meanwhile."""


    @property
    def words(self) -> str:
        """Who they are, behind what a line says of a job: ", on 4 workers"; "" for this process alone."""


class Here(Generic[S]):
    """This process: does one item after the other, and takes the next one from ``items`` only then."""

    words = ""

    def __init__(self, subject: S) -> None:
        self._subject = subject
        self._waits: Waits | None = None

    def work(self, errand: Errand[S, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        """See `Hands`."""
        for item in items:
            doing = errand.do(self._subject, item)
            try:
                while True:
                    self._waits = next(doing)
                    yield None
            except StopIteration as stop:
                self._waits = None
                yield item, stop.value
            finally:
                doing.close()

    def ready(self) -> bool:
        """See `Hands`."""
        return self._waits is None or self._waits.ready()


class Alone(Generic[S]):
    """A subject that has a simulation and nothing else."""

    def __init__(self, analysis: S) -> None:
        self.analysis = analysis
