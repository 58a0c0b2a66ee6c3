"""The user's metric: a Python function that computes a number from outputs and labels."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trt_tui.core.data.userscript import UserFunction, split_script_spec
from trt_tui.errors import InputError, exception_text


@dataclass(frozen=True)
class MetricResult:
    """The value of a metric and its parts for one set of samples.

    Attributes:
        value: The headline: the returned number, or the first of the returned mapping.
        parts: Every number by name, headline included; empty if the function returned one number.
    """

    value: float
    parts: dict[str, float]


class MetricFunction(Protocol):
    """The function behind a metric: a function of the user or of this program. Its `str` is the name of the metric."""

    @property
    def path(self) -> Path:
        """The file to correct if the function returns an invalid value."""

    def __call__(self, outputs: dict[str, np.ndarray], labels: dict[str, np.ndarray], /) -> Any:
        """Computes the metric from outputs and labels: a number, or a mapping of names to numbers."""


class Metric:
    """A metric: a function ``(outputs, labels) -> float | mapping of names to floats`` with a check of its result."""

    def __init__(self, function: MetricFunction) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The name of the metric: ``FILE.py:FUNCTION``, without the folder."""
        return str(self._function)

    def __call__(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> MetricResult:
        """Calls the metric function, and returns its checked result.

        Args:
            outputs: The network's outputs by name, first axis samples.
            labels: The labels by name, rows for the same samples.

        Raises:
            InputError: the function raised an error, or did not return a finite number or a mapping of names to finite
                numbers.
        """
        return self._parse_result(self._function(dict(outputs), dict(labels)))

    def resample_metric(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray],
                        resamples: Iterable[np.ndarray]) -> Iterator[MetricResult | None]:
        """Yields the metric on each bootstrap draw of the samples; None if it fails on that draw.

        Args:
            resamples: For each draw, as many sample indices as there are samples, with repetitions.
        """
        for samples in resamples:
            try:
                yield self({name: array[samples] for name, array in outputs.items()},
                           {name: array[samples] for name, array in labels.items()})
            except InputError:  # for example, if no sample of a class was drawn
                yield None

    def _parse_result(self, returned_value: object) -> MetricResult:
        if not isinstance(returned_value, Mapping):
            return MetricResult(self._parse_number(returned_value, ""), {})
        try:
            items = list(returned_value.items())
        except Exception as error:
            raise self._invalid_result_error(
                f"a {type(returned_value).__name__} that cannot be read: {exception_text(error)}") from error
        if not items:
            raise self._invalid_result_error("an empty mapping")
        parts = {}
        for key, value in items:
            if not isinstance(key, str):
                raise self._invalid_result_error(f"a mapping with the key {_describe_value(key)}")
            parts[key] = self._parse_number(value, f" for {key!r}")
        return MetricResult(next(iter(parts.values())), parts)

    def _parse_number(self, value: object, location: str) -> float:
        try:
            array = np.asarray(value)
        except Exception:  # an object's own __array__ may raise anything
            raise self._invalid_result_error(f"{_describe_value(value)}{location}") from None
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise self._invalid_result_error(f"{_describe_value(value)}{location}")
        number = float(array.reshape(()))
        if not math.isfinite(number):
            raise self._invalid_result_error(f"{number}{location}")
        return number

    def _invalid_result_error(self, returned_text: str) -> InputError:
        return InputError(
            f"Metric {self.name} returned {returned_text}",
            "A metric returns a finite number, or a mapping of names to finite numbers (the first is the headline).",
            f"Correct {self._function.path}.",
        )


def _describe_value(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    try:
        text = repr(value)
    except Exception:  # the `repr` of a user's class may fail
        return type(value).__name__
    return f"{type(value).__name__} {text}" if value is not None and len(text) <= 40 else type(value).__name__


def load_metric(metric_spec: str) -> Metric:
    """Loads a metric from ``FILE.py:FUNCTION``.

    Raises:
        InputError: the text has another form, the file cannot be loaded, or it has no such function.
    """
    path, function = split_script_spec(metric_spec) or (None, None)
    if path is None or function is None:
        raise InputError(
            f"Not a metric: {metric_spec}",
            "A metric is given as FILE.py:FUNCTION.",
            "For example: --metric metric.py:accuracy",
        )
    user_function = UserFunction(path, function)
    user_function.check_parameters("outputs", "labels")
    return Metric(user_function)
