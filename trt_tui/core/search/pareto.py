"""What no other beats: the front of a search, and of any points with a cost and a score."""

from collections.abc import Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places of the points, each a cost and a score, than which none costs less and scores as much or more, or
    costs as much and scores more; the cheapest first, of equal ones the first."""
    front_indices: list[int] = []
    best = float("-inf")
    for index in sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1], place)):
        if points[index][1] > best:
            best = points[index][1]
            front_indices.append(index)
    return front_indices
