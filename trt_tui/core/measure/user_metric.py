"""The user's metric: a Python function that computes a number from outputs and labels."""

import math
from collections.abc import Mapping

import numpy as np

from trt_tui.core.data.userscript import UserFunction, split_script_spec
from trt_tui.errors import InputError, exception_text


class Metric:
    """A metric: a function ``(outputs, labels) -> float | mapping of names to floats`` with a check of its result."""

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The name of the metric: ``FILE.py:FUNCTION``, without the folder."""
        return str(self._function)

    def __call__(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Calls the metric function, and returns its checked numbers by name, the headline first.

        A single number has the name of the metric.

        Args:
            outputs: The network's outputs by name, first axis samples.
            labels: The labels by name, rows for the same samples.

        Raises:
            InputError: the function raised an error, or did not return a finite number or a mapping of names to finite
                numbers.
        """
        returned_value: object = self._function(dict(outputs), dict(labels))
        if not isinstance(returned_value, Mapping):
            return {self.name: self._parse_number(returned_value, "")}
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
        return parts

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
