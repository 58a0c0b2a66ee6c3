"""The Pareto front of a search, or of any points with a cost and a score."""

from collections.abc import Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Returns the indices of the points on the Pareto front, the cheapest first.

    Each point has a cost and a score. A point is on the front if no other point is better in one of them and at least
    as good in the other. Of equal points the first is returned.
    """
    front_indices: list[int] = []
    best = float("-inf")
    for index in sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1], place)):
        if points[index][1] > best:
            best = points[index][1]
            front_indices.append(index)
    return front_indices
