"""The changes of a session's config: precisions, ranges, whole configs, with undo."""

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping

from trt_tui.core.calibration.given import amax_given
from trt_tui.core.calibration.methods import RANGE_METHODS, methods_of
from trt_tui.core.codes import CODES
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig, step
from trt_tui.core.moves.network_method import range_tensors, without_method
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.moves.smooth import Smooth
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, NotYetError
from trt_tui.jobs import requests as rq
from trt_tui.session.recorded import Recorded


class Changing(Recorded):
    """See the module's docstring; what it changes is measured by who asks for it."""

    @abstractmethod
    def ask(self, request: rq.Request) -> None:
        """Sends a request to the child process."""

    @abstractmethod
    def look_at(self, group: Group) -> None:
        """Asks for the statistics and the ways out of a group."""

    @abstractmethod
    def preview_engine(self) -> None:
        """Asks what the builder would make of the config."""

    @abstractmethod
    def try_flips(self) -> None:
        """Asks what the figures become when a row is flipped."""

    def toggle(self, groups: Iterable[Group]) -> None:
        """FP32 on and off: raises all of them, or returns all of them to their defaults if all are FP32."""
        groups = list(groups)
        self._change(self.config.toggled(groups), groups)

    def toggle_barrier(self, group: Group) -> None:
        """A fusion barrier behind a group on and off.

        Raises:
            InputError: its result cannot be an output beside the network's own.
        """
        config = self.config
        if group.tail in config.of(Barrier):
            config = config.without(Barrier, [group.tail])
        else:
            outline = self.opened.outline
            if refused := Barrier().refused(outline, group.tail):
                raise InputError(f"{group.name} cannot have a fusion barrier", refused, "")
            config = config.with_moves({group.tail: Barrier()})
        self._change(config, [group])

    def step(self, groups: Iterable[Group], up: bool) -> None:
        """One step up or down the ladder of the config: INT8, FP16, FP32, or what it uses in their places."""
        config, groups = self.config, list(groups)
        ladder = config.ladder
        for group in groups:
            config = config.with_groups([group], step(group, config.precision_of(group), up, ladder))
        self._change(config, groups)

    def set_precision(self, groups: Iterable[Group], precision: Precision) -> None:
        """Gives groups a precision; those that cannot run in it keep what they have."""
        groups = list(groups)
        self._change(self.config.with_groups(groups, precision), groups)

    def next_range(self, group: Group) -> str:
        """The next range method for a group's inputs, once its statistics are known; returns the method's name.

        Raises:
            InputError: the group is not quantized.
            NotYetError: its statistics are still being measured.
        """
        precision = self.config.precision_of(group)
        tensors = [site.tensor for site in group.ranged(precision)]
        if not tensors:
            raise InputError(f"{group.name} does not read codes", "only layers in INT8 or FP8 have ranges", "")
        smoothed = {tensor for move in self.config.of(Smooth).values() for tensor in move.ranges}
        if not smoothed.isdisjoint(tensors):
            raise InputError(f"the channels of {group.name} are scaled", "its range goes with the factors",
                             "Take SmoothQuant back first.")
        known = self.results.statistics.get(group.name, {})
        if any(tensor not in known for tensor in tensors):
            self.look_at(group)
            raise NotYetError("its ranges are still being measured", "", "Try again in a moment.")
        base = self.calibration.method if self.calibration is not None else "minmax"
        methods = [base, *(name for name in methods_of(CODES[precision]) if name != base)]
        current = self.config.ranges.get(tensors[0])
        now = current.method if current is not None and current.method in methods else base
        following = methods[(methods.index(now) + 1) % len(methods)]
        config = self.config
        for tensor in tensors:
            own = known[tensor].ranges_for(precision)
            choice = None if following == base else RangeChoice(own[following], following)
            config = config.with_range(tensor, choice)
        self._change(config, [group])
        return following

    def set_ranges(self, tensors: Iterable[str], text: str) -> None:
        """Gives tensors a range: an amax, a method, ``p99.9`` or ``top5-mean``; one change, once it is measured.

        Raises:
            InputError: the text is no range.
        """
        amax_given(text)
        self.ask(rq.SetRanges(self.config, tuple((tensor, text) for tensor in dict.fromkeys(tensors))))

    def take_ranges(self, ranges: Mapping[str, RangeChoice]) -> None:
        """Gives tensors ranges, as one change."""
        outline = self.outline or self.preview
        self._change(self.config.with_moves(ranges), [
            group for group in (outline.groups if outline is not None else ())
            if any(site.tensor in ranges for site in group.activations())])

    def compare_methods(self, methods: Iterable[str] = RANGE_METHODS) -> None:
        """Asks what the config yields with the ranges of each calibration method."""
        self.methods = None
        self.ask(rq.CompareMethods(without_method(self.config, self.opened.outline), tuple(methods)))

    @property
    def methods_known(self) -> bool:
        """Whether the calibration methods were compared for the config."""
        return (self.methods is not None and not self.asked.any(rq.CompareMethods)
                and self.methods.config == without_method(self.config, self.opened.outline))

    def use_method(self, method: str) -> None:
        """Gives all tensors the ranges of a calibration method, as one change; those that were set by hand stay.

        It is made at once if it takes ranges back, else once they are measured.
        """
        outline = self.opened.outline
        config = without_method(self.config, outline)
        if self.calibration is not None and method == self.calibration.method:
            self._change(config, outline.groups)
            return
        tensors = tuple(tensor for tensor in range_tensors(outline) if tensor not in config.ranges)
        self.ask(rq.Calibrate(method, tensors, config))

    def set_config(self, config: PrecisionConfig, groups: Iterable[Group] = ()) -> None:
        """Makes a config current; ``groups`` are those it changes, as far as rows say when."""
        self._change(config, groups)

    def undo(self) -> bool:
        """Undoes the last change; returns whether there was one."""
        return self.history.undo() and self._changed()

    def redo(self) -> bool:
        """Redoes the change that was undone last; returns whether there was one."""
        return self.history.redo() and self._changed()

    def _change(self, config: PrecisionConfig, groups: Iterable[Group] = ()) -> None:
        if self.history.apply(config):
            now = time.time()
            self.changed_at.update((group.name, now) for group in groups)
            self._changed()

    def _changed(self) -> bool:
        self.names.give(self.config)
        self.save()
        if self.automatic and self.data is not None:
            self.ask(rq.WhatIf(self.config, shares=True))
            self.preview_engine()
            self.try_flips()
        return True
