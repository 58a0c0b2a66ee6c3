"""The search for everything that can be reached from some tensors, layers or nodes."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def iterate_reachable(starts: Iterable[T], find_next: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yields some items and all that can be reached from them, each once, the last one found first.

    Args:
        find_next: Returns the items that follow an item.
    """
    pending = list(dict.fromkeys(starts))
    found = set(pending)
    while pending:
        item = pending.pop()
        yield item
        following = [following_item for following_item in dict.fromkeys(find_next(item)) if following_item not in found]
        found.update(following)
        pending += following
