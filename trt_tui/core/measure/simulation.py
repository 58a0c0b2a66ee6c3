"""The runs of a network: the loaded gated session, the feeds, and the reference of the judged samples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from trt_tui.core.calibration.not_finite import MEND, find_first_not_finite
from trt_tui.core.data.gathered import Place
from trt_tui.core.data.samples import Samples
from trt_tui.core.hands import Alone, Hands, Here
from trt_tui.core.lowering.gated.compared import Compared
from trt_tui.core.lowering.gated.gated import Gated
from trt_tui.core.lowering.gated.lower import lower_gated
from trt_tui.core.lowering.rules import LOW_FLOATS, Offer
from trt_tui.core.measure.failed_runs import FailedRun, failed_caveat, lowers_nothing, refuse_wrong_outputs
from trt_tui.core.measure.forms import Forms
from trt_tui.core.measure.held import FedAgain, Held
from trt_tui.core.measure.judge import FLOAT, Judged, class_scores, kept_tensors, take, tensor_outputs
from trt_tui.core.measure.magnitudes import Magnitudes, MagnitudesOfFeed, Measures
from trt_tui.core.measure.masks import axes_of_mask, common_mask, refuse_nan
from trt_tui.core.measure.reference import Outputs
from trt_tui.core.measure.sample_dependence import SampleDependence
from trt_tui.core.measure.scoring import Scoring
from trt_tui.core.measure.tally import comparable
from trt_tui.core.measure.user_metric import Metric
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Backend, Level, Runner
from trt_tui.errors import InputError, OutOfMemoryError, RunFailedError

S = TypeVar("S", bound="Simulation")

COMPARED_ELEMENTS = 4096
"""Judged outputs with fewer elements a sample are compared on the host."""

WHAT_IFS = "what-ifs"
"""What is run here, for people."""


class Simulation:
    """The runs of one network on one set of samples, used as a context manager.

    Args:
        samples: The judged samples; every figure is taken on all of them unless a method is given feeds.
        judged: What errors are taken at; see `trt_tui.core.measure.judge.judged_outputs`.
        metric: The user's metric; used if the samples have labels.
        other: What surrounds INT8 layers in the first configs. A config that needs something else has the session
            loaded again, with that added.
        yields: Tensors that runs yield beside those that are judged.
        against: What errors are taken against; None for FP32 of the network itself. It has all judged tensors.

    Attributes:
        scored: Tensors that the metric is given; none without one.
        kept: See `trt_tui.core.measure.judge.kept_tensors`.
        level: How the simulation runs on a device; None before the first run there, and elsewhere.

    Raises:
        InputError: a judged tensor lies inside a fused group.
    """

    def __init__(
        self,
        network: Network,
        backend: Backend,
        samples: Samples,
        judged: Sequence[Judged],
        *,
        metric: Metric | None = None,
        other: Precision = Precision.FP16,
        against: Outputs | None = None,
        yields: Sequence[str] = (),
    ) -> None:
        self.network = network
        self.backend = backend
        self.samples = samples
        self.judged = tuple(judged)
        self.metric = metric if samples.has_labels else None
        self.kept = kept_tensors(network, self.judged, self.metric is not None and self.metric.inner)
        scored = (*tensor_outputs(network), *self.kept)
        self.scored = scored if self.metric is not None else ()
        self.against = against
        known = against is None or set(scored) <= against.tensors
        self._scored = self.reference if known else self.own
        self._scoring = Scoring(self.metric, samples, scored, self._scored) if self.metric is not None else None
        lows = {other} & set(LOW_FLOATS)
        if not backend.capabilities.device:  # roundings that are not asked for cost nothing there
            lows = lows or {Precision.FP16}
        self.offer = Offer.of(lows, {other})
        self.classifier = class_scores(network, self.judged)
        self.sessions = 0
        self.level: Level | None = None
        self._magnitudes: dict[int, Magnitudes] = {}
        self._forms = Forms(backend, samples, WHAT_IFS, network)
        samples.portions.held_by(WHAT_IFS, self.unload)
        self._loaded: tuple[Gated, Runner] | None = None
        self._parts: dict[tuple[int, str], np.ndarray] = {}
        self._sums: dict[tuple[int, str], np.ndarray] = {}
        self._compared: tuple[Compared, ...] = ()
        self._shapes: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._dependences: dict[tuple[int, ...], SampleDependence] = {}
        self._blank: dict[tuple[int, ...], np.ndarray] = {}
        self._fed = FedAgain(samples, backend.capabilities.device)
        self._own = self._reference = Held()
        if against is not None:
            self._reference = Held()
        names = [*(one.tensor for one in self.judged), *yields]
        if self.metric is not None:
            names += scored
        self.tensors = tuple(dict.fromkeys(names))
        self._owner: Simulation | None = None
        self._places: tuple[Sequence[Place], ...] = ()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the session and the reference."""
        self.unload()
        self._own.clear()
        self._reference.clear()
        if self.against is not None:
            self.against.close()

    def unload(self) -> bool:
        """Frees the session, with the weights in it, if there is one; it is loaded again when it is needed."""
        if self._loaded is None:
            return False
        self._loaded[1].close()
        self._loaded = None
        return True

    @cached_property
    def padded(self) -> dict[str, tuple[bool, ...]]:
        """The last tensors of groups that have the axes of the judged outputs' mask; see `axes_of_mask`."""
        mask = common_mask(self.judged)
        tails = [group.tail for group in self.network.groups if group.tail not in self.network.behind]
        return axes_of_mask(self.network, self.backend, self.samples, mask, tails) if mask else {}

    # -- the gated session --------------------------------------------------------------------------------------

    def _session(self, config: PrecisionConfig) -> tuple[Gated, Runner]:
        """A loaded graph that can run a config, and all configs before it."""
        if self._owner is not None:
            loaded = self._owner._session(config)
            self._compared = self._owner._compared
            return loaded
        needed = Offer.needed(self.network, config)
        if not self.offer.covers(needed):
            self.unload()
        while self._loaded is None:
            offer = self.offer | needed
            data = self._forms.data
            self._compared = self._to_compare() if data else ()
            gated = lower_gated(self.network, floats=offer.floats, others=offer.others, codes=offer.codes,
                                constants=offer.constants, operators=offer.operators, outputs=self.tensors, data=data,
                                compared=self._compared)
            try:
                runner = self._forms.load(gated, self._at_level, more=[*gated.references.values()])
            except OutOfMemoryError:
                if not self._forms.lower():
                    raise
                continue
            self._loaded, self.offer = (gated, runner), offer
            self.sessions += 1
        return self._loaded

    def anew(self, group: str) -> float:
        """Which part of a run is computed anew for a config that differs in one group from one that was run before, as
        far as that is known."""
        return self._forms.anew(self._loaded[0].gates.get(group, {}).values()) if self._loaded is not None else 1.0

    def _at_level(self, level: Level) -> None:
        self.level = level

    def feeds(self, config: PrecisionConfig, ranges: Mapping[str, float]) -> dict[str, np.ndarray]:
        """The feeds that switch the loaded graph to a config (`Gated.feeds`); reuse them: they hold rounded weights."""
        return self._session(config)[0].feeds(config, ranges)

    def measure_magnitudes(self, feeds: Sequence[int] | None = None, hands: Hands[Measures] | None = None
                           ) -> Iterator[None]:
        """Measures the magnitudes of feeds that are not known yet; yields after each run.

        Args:
            hands: The executor of the feeds; this process by default.

        Raises:
            InputError: the data cannot be read.
        """
        unknown = [index for index in self.indices(feeds) if index not in self._magnitudes]
        if not unknown:
            return
        task = MagnitudesOfFeed()
        try:
            for done in (hands or Here(Alone(self))).work(task, unknown):
                if done is not None:
                    self._magnitudes[done[0]] = done[1]
                yield
        finally:
            task.close()

    def magnitudes(self, feeds: Sequence[int] | None = None) -> Magnitudes | None:
        """Returns the largest magnitudes over feeds; None if one of them was not measured."""
        indices = self.indices(feeds)
        if not all(index in self._magnitudes for index in indices):
            return None
        return Magnitudes.join(self._magnitudes[index] for index in indices)

    def indices(self, feeds: Sequence[int] | None) -> list[int]:
        """The feeds asked for, all by default."""
        return list(range(len(self.samples)) if feeds is None else feeds)

    def _to_compare(self) -> tuple[Compared, ...]:
        """The judged outputs that are compared in the graph: floats too large to be worth their way to the host, whose
        first axis is that of an input."""
        found = []
        leads = {info.shape[0] for info in self.network.inputs if info.shape}
        for one in self.judged:
            shape = self.network.shape(one.tensor) or ()
            known = [size for size in shape[1:] if isinstance(size, int)]
            small = len(known) == len(shape) - 1 and math.prod(known) < COMPARED_ELEMENTS
            large = one.kind == FLOAT and shape and shape[0] in leads and not small
            whole = not (one.mask or one.hidden_from or one.tensor in self.network.selected)
            if large and whole and one is not self.classifier:
                found.append(Compared(one.name, one.tensor, tuple((c.axis, c.start, c.stop) for c in one.slices)))
        return tuple(found)

    def _runs(self, config: PrecisionConfig, ranges: Mapping[str, float], indices: Sequence[int], *,
              compared: bool = False) -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """Yields the judged tensors of a config and what was compared in the graph, feed by feed.

        Args:
            compared: Tensors that were compared, with finite sums, are left out.
        """
        session: tuple[Gated, Runner] | None = None
        fed: dict[str, np.ndarray] = {}
        for index in indices:
            if compared:
                self.reference(index)  # it may be measured by a run of this kind
            result = None
            while result is None:
                if session is None or session is not self._loaded:  # another config may have had it loaded anew
                    session = self._session(config)
                    fed = session[0].feeds(config, ranges)
                try:
                    result = self._run(*session, index, fed, compared)
                except OutOfMemoryError:
                    (self._owner or self).unload()
                    session = None
                    if not self._forms.lower():
                        raise
                except RunFailedError as error:
                    if lowers_nothing(self.network, config):
                        raise
                    result = FailedRun(self.own(index), failed_caveat(self.network, config, error)), {}
            yield result

    def _run(self, gated: Gated, runner: Runner, index: int, fed: Mapping[str, np.ndarray], compared: bool
             ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """What `_runs` yields for a feed."""
        feed, tensors = {**self._fed.feed(index), **fed}, self.tensors
        if compared and gated.compared:
            feed.update((fed_as, self._reference_part(index, name)) for name, fed_as in gated.references.items())
            own = self._scoring.names if self._scoring is not None else ()
            within = {one.tensor for one in self._compared} - set(own)
            within -= {one.tensor for one in self.judged if one.name not in gated.compared}
            tensors = tuple(tensor for tensor in self.tensors if tensor not in within)
            fetched = runner.run(feed, [*(gated.outputs[t] for t in tensors), *gated.compared.values()])
            sums = {name: fetched[output] for name, output in gated.compared.items()}
            if all(np.isfinite(one).all() for one in sums.values()):
                sums = {name: np.concatenate([one, self._reference_sums(index, name)], 1)
                        for name, one in sums.items()}
                return {tensor: comparable(fetched[gated.outputs[tensor]]) for tensor in tensors}, sums
        feed.update((gated.references[one.name], self._no_reference(one, feed)) for one in self._compared)
        fetched = runner.run(feed, [gated.outputs[tensor] for tensor in self.tensors])
        return {tensor: comparable(fetched[gated.outputs[tensor]]) for tensor in self.tensors}, {}

    def _no_reference(self, compared: Compared, feed: Mapping[str, np.ndarray]) -> np.ndarray:
        """What stands for a part of the reference where sums are of no interest: of the shape that the part has in runs
        that are compared, where that is known, so that this is a run of the same shapes."""
        known = self._shapes.get((compared.name, *(feed[info.name].shape for info in self.network.inputs)))
        shape = known or (1,) * len(self.network.shape(compared.tensor) or ())
        return self._blank.setdefault(shape, np.zeros(shape, np.float32))

    def _note_shapes(self, feed: Mapping[str, np.ndarray], result: Mapping[str, np.ndarray]) -> None:
        """Notes the shapes of what is compared where those of the inputs decide them."""
        given = [shape for info in self.network.inputs if (shape := info.shape) is not None]
        sizes = {size for shape in given for size in shape if isinstance(size, str)}
        for one in self._compared:
            own = self.network.shape(one.tensor) or ()
            if all(isinstance(size, int) or size in sizes for size in own):
                judged = next(judged for judged in self.judged if judged.name == one.name)
                key = one.name, *(feed[info.name].shape for info in self.network.inputs)
                self._shapes[key] = take(result[one.tensor], judged).shape

    def reference(self, index: int) -> dict[str, np.ndarray]:
        """The judged tensors that errors are taken against for one feed, measured once.

        Raises:
            InputError: they hold NaN, or the network cannot run these data.
        """
        if self._owner is not None:
            if index not in self._reference:
                whole = {feed: self._owner.reference(feed) for feed in {feed for feed, _ in self._places[index]}}
                self._reference.put(index, {tensor: np.stack([whole[feed][tensor][row]
                                                              for feed, row in self._places[index]])
                                            for tensor in self.tensors})
            return self._reference.get(index)
        if self.against is None:
            return self.own(index)
        if index not in self._reference:
            found = self.against.outputs(self.samples, index)
            found = {tensor: found[tensor] for tensor in self.tensors if tensor in found}
            refuse_nan(self.judged, self.samples, index, found, self.against.name)
            if len(found) < len(self.tensors):
                found = self.own(index) | found
            self._reference.put(index, found)
        return self._reference.get(index)

    def own(self, index: int) -> dict[str, np.ndarray]:
        """The network's own judged tensors in FP32 for one feed, measured once; raises as `reference`, and where the
        file declares an output of another size."""
        if index not in self._own:
            result, _ = next(self._runs(PrecisionConfig.uniform(Precision.FP32), {}, [index]))
            refuse_wrong_outputs(self.network, result)
            if self.against is None:
                self._refuse_nan(index, result)
            self._note_shapes(self._fed.feed(index), result)
            self._own.put(index, result)
        return self._own.get(index)

    def _refuse_nan(self, index: int, result: Mapping[str, np.ndarray]) -> None:
        """Refuses NaN in the network's own FP32 run; names the value that it comes from.

        Raises:
            InputError: NaN stands where it counts.
        """
        try:
            refuse_nan(self.judged, self.samples, index, result, "the FP32 network")
        except InputError as error:
            found = find_first_not_finite(self.network.model, self.samples, index, self.backend)
            if found is None:
                raise
            raise InputError(error.title, f"{error.cause}: {found.text}", MEND) from None

    def no_shares_reason(self, feeds: Sequence[int] | None = None) -> str:
        """Returns why raising groups to FP32 shows nothing, as a sentence; "" if it does.

        Only against something else than FP32 of the network: without it such a network is refused.
        """
        for index in self.indices(feeds) if self.against is not None else ():
            try:
                self._refuse_nan(index, self.own(index))
            except InputError as error:
                return f"{error.title[:1].upper()}{error.title[1:]}: {error.cause}"
        return ""

    def _reference_part(self, index: int, name: str) -> np.ndarray:
        """A judged output of the reference for one feed, the same array again."""
        judged = next(one for one in self.judged if one.name == name)
        whole = self.reference(index)[judged.tensor]
        if not judged.slices:
            return whole
        if (index, name) not in self._parts:
            self._parts[index, name] = np.ascontiguousarray(take(whole, judged))
        return self._parts[index, name]

    def _reference_sums(self, index: int, name: str) -> np.ndarray:
        """Σref² and the largest |ref| of each row of a judged output for one feed, float64 ``(rows, 2)``."""
        if (index, name) not in self._sums:
            array = self._reference_part(index, name)
            rows = array.reshape(len(array), -1).astype(np.float64)
            self._sums[index, name] = np.stack([np.einsum("ij,ij->i", rows, rows), np.abs(rows).max(axis=1)], 1)
        return self._sums[index, name]

    # -- verdicts -----------------------------------------------------------------------------------------------
