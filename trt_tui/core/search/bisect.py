"""The shortest prefix of an order that passes, found by halving.

Source: Polygraphy's ``debug precision --mode bisect`` (``--dir forward`` and ``reverse``), which takes the layers in
network order. It is exact where every longer prefix of a passing one passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from trt_tui.core.search.evaluation import Steps, Trial
from trt_tui.core.search.state import State


def bisect(state: State, order: Sequence[str]) -> Steps:
    """At most ceil(log2(n + 1)) evaluations; raising all of ``order`` is known to pass, raising none to fail."""
    fails, passes = 0, len(order)
    while passes - fails > 1:
        middle = (fails + passes) // 2
        evaluation = yield Trial(state.base.union(order[:middle]))
        if evaluation.passed:
            passes = middle
        else:
            fails = middle
    return state.base.union(order[:passes])


def forward(state: State) -> Steps:
    """The shortest run of first layers."""
    return bisect(state, _outside(state))


def reverse(state: State) -> Steps:
    """The shortest run of last layers."""
    return bisect(state, _outside(state)[::-1])


def shorter(state: State, found: frozenset[str]) -> Steps:
    """``found``, or a shorter run of first or last layers where one passes: 2 evaluations where none does."""
    outside = _outside(state)
    for order in (outside, outside[::-1]):
        fewer = order[:max(0, len(found) - len(state.base) - 1)]
        if fewer and (yield Trial(state.base.union(fewer))).passed:
            found = yield from bisect(state, fewer)
    return found


def _outside(state: State) -> list[str]:
    return [name for name in state.candidates if name not in state.base]
