"""A user's metric: one Python function that turns outputs and labels into a figure of merit."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trt_tui.core.data.userscript import DETECTION, UserFunction, split_spec
from trt_tui.core.measure.detection import Detection
from trt_tui.errors import InputError, text_of


@dataclass(frozen=True)
class MetricResult:
    """What a metric returned.

    Attributes:
        value: The headline: the number returned, or the first of the mapping returned.
        parts: Every number by name, the headline included; empty where the function returned one number.
    """

    value: float
    parts: dict[str, float]


class MetricFunction(Protocol):
    """What a metric calls: a function of the user's, or one that comes with the program; its text is its name."""

    @property
    def path(self) -> Path:
        """The file to correct where it returns nonsense."""

    def __call__(self, outputs: dict[str, np.ndarray], labels: dict[str, np.ndarray], /) -> Any:
        """A number, or a mapping of names to numbers."""


class Metric:
    """The user's function ``(outputs, labels) -> float | mapping of names to floats``.

    Attributes:
        inner: Whether it is given judged tensors inside the network too: those before NMS.
    """

    def __init__(self, function: MetricFunction) -> None:
        self._function = function
        self.inner = isinstance(function, Detection)

    @property
    def name(self) -> str:
        """``FILE.py:FUNCTION``, without the folder."""
        return str(self._function)

    def __call__(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> MetricResult:
        """Calls the user's function.

        Args:
            outputs: The network's outputs by name, first axis samples.
            labels: The labels by name, rows for the same samples.

        Raises:
            InputError: it raised, or returned anything but a finite number or a mapping of names to finite numbers.
        """
        return self._result(self._function(dict(outputs), dict(labels)))

    def on_draws(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray],
                 draws: Iterable[np.ndarray]) -> Iterator[MetricResult | None]:
        """Yields the metric on each draw of the samples; None if it fails on that draw.

        Args:
            draws: Indices of samples, as many as there are samples, with repetitions.
        """
        if isinstance(self._function, Detection):
            yield from map(self._result_or_none, self._function.on_draws(outputs, labels, draws))
            return
        for samples in draws:
            try:
                yield self({name: array[samples] for name, array in outputs.items()},
                           {name: array[samples] for name, array in labels.items()})
            except InputError:  # for one, if no sample of a class was drawn
                yield None

    def _result_or_none(self, returned: object) -> MetricResult | None:
        try:
            return self._result(returned)
        except InputError:
            return None

    def _result(self, returned: object) -> MetricResult:
        if not isinstance(returned, Mapping):
            return MetricResult(self._number(returned, ""), {})
        try:
            items = list(returned.items())
        except Exception as error:
            raise self._nonsense(f"a {type(returned).__name__} that cannot be read: {text_of(error)}") from error
        if not items:
            raise self._nonsense("an empty mapping")
        parts = {}
        for key, value in items:
            if not isinstance(key, str):
                raise self._nonsense(f"a mapping with the key {_describe(key)}")
            parts[key] = self._number(value, f" for {key!r}")
        return MetricResult(next(iter(parts.values())), parts)

    def _number(self, value: object, where: str) -> float:
        try:
            array = np.asarray(value)
        except Exception:  # an object's own __array__ may raise anything
            raise self._nonsense(f"{_describe(value)}{where}") from None
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise self._nonsense(f"{_describe(value)}{where}")
        number = float(array.reshape(()))
        if not math.isfinite(number):
            raise self._nonsense(f"{number}{where}")
        return number

    def _nonsense(self, what: str) -> InputError:
        return InputError(
            f"Metric {self.name} returned {what}",
            "A metric returns a finite number, or a mapping of names to finite numbers (the first is the headline).",
            f"Correct {self._function.path}.",
        )


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    try:
        text = repr(value)
    except Exception:  # a class of the user, whose text fails
        return type(value).__name__
    return f"{type(value).__name__} {text}" if value is not None and len(text) <= 40 else type(value).__name__


def load_metric(spec: str, size: tuple[int, int] | None = None) -> Metric:
    """Loads ``FILE.py:FUNCTION``, or ``detection:map=FILE.json`` (see `trt_tui.core.measure.detection`).

    Args:
        size: Height and width of the network's image input; None where it has none.

    Raises:
        InputError: the text has another form, the file cannot be loaded, or it has no such function.
    """
    if spec.startswith(DETECTION):
        return Metric(Detection(spec, size))
    path, function = split_spec(spec) or (None, None)
    if path is None or function is None:
        raise InputError(
            f"Not a metric: {spec}",
            "A metric is given as FILE.py:FUNCTION, or as detection:map=FILE.json with COCO annotations.",
            "For example: --metric metric.py:accuracy",
        )
    return Metric(UserFunction(path, function))
