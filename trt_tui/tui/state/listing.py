"""What is listed of a network, and how: the view, the figures, the order, the opened rows, what the filter finds."""

import math
import time
from collections.abc import Mapping, Sequence

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.hierarchy import GroupRow
from trt_tui.core.network.layers import Group, Outline
from trt_tui.session.session import Session
from trt_tui.tui.state.figures import SHARE_BANDS, Figures, Measure, figures_of
from trt_tui.tui.state.filters import Filter, Subject
from trt_tui.tui.state.order import Column, in_order, weights_by
from trt_tui.tui.state.tree import TAIL, TreeModel, View, VisibleRow

FOLLOW_S = 1.0
"""While figures come in and nobody has touched the tree, it is sorted again at most this often."""

MOST_REVEALED = 12
"""The tree opens scopes by itself as long as at most this many rows show."""


class Listing:
    """See the module's docstring.

    Attributes:
        view: What the main pane lists.
        measure: What rows are coloured by, in the run named ``run``.
        opened: Paths of the scopes and rows that are open.
        order: Weights that rows are ordered by, None for network order; ``by`` is the column that they are of.
        filter: What rows are filtered by, None where all show.
        matches: Names of the groups that it finds, None where there is none.
        following: The cursor was not moved since the rows were sorted, so their order follows the figures.
        placed: The cursor stands where the user put it, or on the first answer; until then it is on the first row.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.view = View.TREE
        self.measure = Measure.OWNS
        self.run = "config"
        self.opened: set[str] = set()
        self.order: Mapping[str, float] | None = None
        self.by = Column.SHARE
        self.filter: Filter | None = None
        self.matches: set[str] | None = None
        self.following = True
        self.placed = False
        self._model: TreeModel | None = None
        self._figures: Figures | None = None
        self._last: PrecisionConfig | None = None
        self._followed = 0.0
        self._first: frozenset[str] = frozenset()
        self._small: frozenset[str] = frozenset()
        self._rows: list[VisibleRow] | None = None
        self._made_of: tuple[object, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether there is a network to list; `model` is there only then."""
        return self._model is not None

    @property
    def is_measured(self) -> bool:
        """Whether `take_figures` has been called since the network was opened; `figures` are there only then."""
        return self._figures is not None

    @property
    def model(self) -> TreeModel:
        """The rows of the network."""
        assert self._model is not None, "nothing is open"
        return self._model

    @property
    def figures(self) -> Figures:
        """The figures of the rows."""
        assert self._figures is not None, "nothing is open"
        return self._figures

    @property
    def views(self) -> list[View]:
        """The views that this network has."""
        return [view for view in View if view is not View.BLOCKS or self.model.blocks is not None]

    def open(self, outline: Outline) -> bool:
        """Lists a network; whether it is another one than was listed."""
        if self._model is not None and self._model.outline is outline:
            return False
        self._model = TreeModel(outline)
        self._figures = self._rows = self.matches = self.filter = None
        self.opened = self._model.first_open()
        self.placed = False
        return True

    def figures_in(self, measure: Measure, run: str) -> Figures:
        """The figures of another view."""
        return figures_of(self.session, self.model, measure, run)

    def take_figures(self) -> None:
        """Takes the figures from the session; while nobody has touched the tree, its order follows them."""
        found = figures_of(self.session, self.model, self.measure, self.run, self._last)
        if self.measure is Measure.OWNS and not found.values:
            suspects = self.figures_in(Measure.ISOLATED, self.run)
            if suspects.values or suspects.bad:
                found = suspects
        results, config = self.session.results, self.session.config
        if self._last is None or len(results.of(config).shares) >= len(results.of(self._last).shares):
            self._last = config
        self._figures = found
        if self.filter is not None:
            self.filter_by(self.filter)
        now = time.monotonic()
        if (self.following and (found.values or found.bad)
                and (self.order is None or now - self._followed > FOLLOW_S or not self.session.busy)):
            self._followed = now
            self.sort()
            for name in found.worst_first[:MOST_REVEALED]:
                if name in found.loud and self.by is Column.SHARE:
                    self.reveal(name)
        elif self._small - found.small:
            self._small &= found.small  # a row whose share has grown is not hidden; others stay where they are

    def sort(self, by: Column | None = None) -> None:
        """Orders the rows by the newest figures of a column, that of before by default; in the worst-first view those
        that were raised stand before the worst."""
        found = self.figures
        self.by = by if by is not None else self.by
        order = weights_by(found, self.by) or None
        if self.order != order:
            self.order = order
        first, small = (found.raised if found.run == "config" else frozenset(), found.small) if (
            self.by is Column.SHARE) else (frozenset[str](),) * 2
        if (self._first, self._small) != (first, small):
            self._first, self._small = first, small

    @property
    def is_old(self) -> bool:
        """Whether the rows that lose something stand in another order than the newest figures would have them in."""
        if self.order is None:
            return False
        found = self.figures
        if self.by is not Column.SHARE:
            weights = weights_by(found, self.by)
            return in_order(list(weights), weights) != in_order(list(weights), self.order)
        least = SHARE_BANDS[-1] if found.measure is Measure.OWNS else 0.0
        now = [name for name in found.worst_first if found.weights[name] >= least]
        then = sorted(now, key=lambda name: -self.order.get(name, -math.inf) if self.order is not None else 0.0)
        return now != then

    @property
    def first_answer(self) -> str | None:
        """Path of the worst row, for the cursor that nobody has moved, once all shares are there; None before that, and
        where no row is bad."""
        shares = self.session.measured("config").shares
        if self.measure is Measure.OWNS and self.session.busy and any(
                row.group.name not in shares for row in self.model.group_rows):
            return None
        return self.worst_loud

    def filter_by(self, wanted: Filter | None) -> None:
        """Lists what a filter finds; everything where there is none. Figures that come in later count too."""
        self.filter = wanted
        if wanted is None:
            self.matches = None
            return
        shares, config = self.session.results.of(self.session.config).shares, self.session.config
        found = set()
        for row in self.model.group_rows:
            share = shares.get(row.group.name)
            subject = Subject(row.group, self.model.words_of(row), share.owns if share is not None else None,
                              config.precision_of(row.group), row.group.name in config.held)
            if wanted.finds(subject):
                found.add(row.group.name)
        if found != self.matches:
            self.matches = found

    def reveal(self, group: str) -> None:
        """Opens the scopes around a group."""
        paths = {scope.path for scope in self.model.ancestors[group]} if self.view is not View.WORST else set()
        if self.view is View.WORST and group in self._small:
            paths.add(TAIL)
        if not paths <= self.opened:
            self.opened = self.opened | paths

    def rows(self) -> list[VisibleRow]:
        """The lines of the tree; the same list as long as nothing that makes them has changed."""
        made_of = (self.view, self.opened, self.order, self.matches, self._first, self._small)
        if self._rows is None or any(one is not other for one, other in zip(made_of, self._made_of, strict=True)):
            self._made_of = made_of
            if self.view is View.WORST:
                self._rows = self.model.worst_first(self.opened, self.order, self.matches, self._first, self._small)
            else:
                self._rows = self.model.visible(self.opened, self.order, self.matches, self.by.sums)
        return self._rows

    @property
    def worst_loud(self) -> str | None:
        """Path of the worst row, None where it is not a bad one."""
        worst = next(iter(self.figures.worst_first), None)
        if not self.order or worst is None:
            return None
        return self.model.rows[worst].path if worst in self.figures.loud else None

    def beside(self, chosen: Sequence[Group], forward: bool) -> str | None:
        """Name of the bad group that follows what is chosen, or precedes it, around the ends; None where there is none.

        Args:
            chosen: One group, or those of a scope, whose first may itself be next.
        """
        model = self.model
        if self.view is View.WORST:
            lines = model.worst_first(set(), self.order, self.matches, self._first)
        else:
            lines = model.visible({scope.path for scope in model.scopes}, self.order, self.matches, self.by.sums)
        order = [line.row.group.name for line in lines if isinstance(line.row, GroupRow)]
        bad = [index for index, name in enumerate(order) if name in self.figures.loud]
        if not bad:
            return None
        here = order.index(chosen[0].name) if chosen and chosen[0].name in order else -1
        if forward:
            after = [index for index in bad if index > here or (index == here and len(chosen) != 1)]
            return order[after[0] if after else bad[0]]
        before = [index for index in bad if index < here]
        return order[before[-1] if before else bad[-1]]
