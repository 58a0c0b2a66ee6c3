"""The protocols of tasks, which are the units of parallel work, and of the executors that run tasks.

A measurement creates a `Task` and a list of items. An `Executor` applies the task to each item, in this process or in
several processes. The results do not depend on the executor. They arrive in the order in which the items are finished.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
Step = TypeVar("Step")
Translated = TypeVar("Translated")
Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def map_generator_items(
    steps: Generator[Step, None, T], function: Callable[[Step], Translated]
) -> Generator[Translated, None, T]:
    """Yields the result of a function for each item of a generator. Returns the return value of the generator.

    Closing it closes ``steps``.
    """
    with contextlib.closing(steps):
        while True:
            try:
                step = next(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
            yield function(step)


class Waitable(Protocol):
    """A condition that another thread fulfils. A task yields it to pause until ``ready`` returns True."""

    @property
    def ready(self) -> Callable[[], bool]:
        """A function that returns True as soon as the task can continue."""


class Task(Protocol[S_contra, Item_contra, T_co]):
    """A unit of parallel work, which an executor applies to each item.

    Each process receives one pickled copy. Data that a task caches between items are not pickled.

    Attributes:
        item_text: The description of an item for users, in which ``{}`` stands for the item.
    """

    item_text: str

    def run_item(self, context: S_contra, item: Item_contra) -> Generator[Waitable | None, None, T_co]:
        """Executes the task for one item.

        Yields None between two executions, or the `Waitable` that the task waits for. Returns the result of the item,
        which must be picklable.

        Args:
            context: The opened network, data and backends, equal in every process.
        """


class LoadingTask:
    """A base class of tasks that load an object for the first item, such as an inference session, and keep it for later
    items.
    """

    _loaded: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def close(self) -> None:
        """Frees the loaded object."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None


class Executor(Protocol[S_co]):
    """The protocol of executors, which apply tasks to items in this process or on a cluster."""

    def map(self, task: Task[S_co, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        """Yields each item with its result as soon as the result is available, and None while it waits.

        Closing the iterator stops the work.

        Raises:
            TrtTuiError: An item failed.
        """

    def is_ready(self) -> bool:
        """Returns True if `map` can make progress now. If not, `map` yields only None."""

    @property
    def location_text(self) -> str:
        """A text for the descriptions of jobs that names other executing processes, such as ", on 4 workers"; "" if
        there are none.
        """


class LocalExecutor(Generic[S]):
    """The executor that runs all tasks in this process.

    The items are executed one after the other. The next item is taken from ``items`` only when the previous one is
    finished.
    """

    location_text = ""

    def __init__(self, context: S) -> None:
        self._context = context
        self._waitable: Waitable | None = None

    def map(self, task: Task[S, Item, T], items: Iterable[Item]) -> Generator[tuple[Item, T] | None, None, None]:
        for item in items:
            result = yield from map_generator_items(task.run_item(self._context, item), self._set_waitable)
            self._set_waitable(None)
            yield item, result

    def is_ready(self) -> bool:
        return self._waitable is None or self._waitable.ready()

    def _set_waitable(self, waitable: Waitable | None) -> None:
        self._waitable = waitable


class AnalysisProvider(Protocol[S_co]):
    """The context in which a `Task` executes the simulation."""

    @property
    def analysis(self) -> S_co:
        """The simulation on the judged samples."""


class AnalysisContext(Generic[S]):
    """A context for tasks that contains only a simulation."""

    def __init__(self, analysis: S) -> None:
        self.analysis = analysis
