"""Who does what a measurement consists of: this process one thing after the other, or several processes.

A measurement makes an `Task` and says with which items; `Executor` do it with each. The results are the same whoever
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


class Waitable(Protocol):
    """There is nothing to do until ``ready`` returns True: a thread is at work."""

    @property
    def ready(self) -> Callable[[], bool]:
        """Whether there is."""


class Task(Protocol[S_contra, Item_contra, T_co]):
    """What is done with each item.

    It is pickled, once for each process that does it; what it keeps from one item to the next is not.
    """

    def describe_item(self, item: Item_contra) -> str:
        """What an item is, for people."""

    def run_item(self, context: S_contra, item: Item_contra) -> Generator[Waitable | None, None, T_co]:
        """Yields between two runs, or what it waits for; returns what came of the item, which is pickled too.

        Args:
            context: What is open in the process: the same network, data and backends everywhere.
        """


class Executor(Protocol[S_co]):
    """Do errands."""

    def map(self, task: Task[S_co, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        """Yields an item with what came of it once that is known, and None in between.

        Whoever closes the iterator stops the work.

        Raises:
            TrtTuiError: an item failed.
        """

    def is_ready(self) -> bool:
        """Whether there is something to go on with; else `map` yields nothing but None meanwhile."""


    @property
    def location_text(self) -> str:
        """Who they are, behind what a line says of a job: ", on 4 workers"; "" for this process alone."""


class LocalExecutor(Generic[S]):
    """This process: does one item after the other, and takes the next one from ``items`` only then."""

    location_text = ""

    def __init__(self, context: S) -> None:
        self._context = context
        self._waitable: Waitable | None = None

    def map(self, task: Task[S, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        for item in items:
            execution = task.run_item(self._context, item)
            try:
                while True:
                    self._waitable = next(execution)
                    yield None
            except StopIteration as stop:
                self._waitable = None
                yield item, stop.value
            finally:
                execution.close()

    def is_ready(self) -> bool:
        return self._waitable is None or self._waitable.ready()


class AnalysisContext(Generic[S]):
    """A subject that has a simulation and nothing else."""

    def __init__(self, analysis: S) -> None:
        self.analysis = analysis
