"""A config whose run fails where FP32 runs on the same samples: rounding is the cause, and not the data.

A rounded index may lie beyond its table, a rounded size may not fit what it divides. What an engine computes there is
undefined. So the run misses every target: its floats count as NaN, its integers as different, and the reason is a
caveat of its accuracy.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from trt_tui.core.measure.comparison import Caveat, Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, RunFailedError, wrong_size_error
from trt_tui.words import first_few, plural

_AT = re.compile(r"running (?P<operator>\w+) node\. Name: ?'(?P<name>[^']*)' ?(?:Status Message: )?(?P<said>.*)")
"""ONNX Runtime's words for the node that failed; an outer node of a subgraph comes before the inner one."""


FAILED_RUN = "failed run"
"""The kind of its caveat."""


class FailedRun(dict[str, np.ndarray]):
    """The outputs that stand for those of a run that failed.

    Attributes:
        caveat: Why it failed.
    """

    caveat: Caveat

    def __init__(self, expected: Mapping[str, np.ndarray], caveat: Caveat) -> None:
        super().__init__((name, _unlike(array)) for name, array in expected.items())
        self.caveat = caveat


def failure_of(accuracy: Verdict) -> str:
    """Returns why the run of an accuracy failed; "" if it did not fail."""
    return next((caveat.text for caveat in accuracy.caveats if caveat.kind == FAILED_RUN), "")


def lowers_nothing(network: Outline, config: PrecisionConfig) -> bool:
    """Returns True if every group runs in FP32, so that rounding cannot be the cause of a failure."""
    return all(config.precision_of(group) is Precision.FP32 for group in network.groups)


def failed_caveat(network: Outline, config: PrecisionConfig | None, error: RunFailedError) -> Caveat:
    """Returns why a config fails at run time, with the operator and what to do.

    Args:
        config: None for a network of which no config is known.
    """
    loose = [name for name in network.index_groups
             if config is not None and config.precision_of(network.group(name)) is not Precision.FP32]
    remedy = (f"--keep indices keeps {plural(len(loose), 'fused layer')} in FP32 ({first_few(loose, 3)})" if loose else
              "keep what computes the values that it reads in FP32 by name, with --keep")
    return Caveat(FAILED_RUN, f"rounding makes {_failure(network, error)}, and FP32 does not fail; {remedy}",
                  fails=True)


@contextmanager
def rounding_blamed(network: Outline) -> Iterator[None]:
    """Turns a failure of a network with rounded layers into an error that does not blame the data.

    Raises:
        InputError: the run failed.
    """
    try:
        yield
    except RunFailedError as error:
        raise rounding_error(f"rounding makes {_failure(network, error)}") from None


def rounding_error(cause: str) -> InputError:
    """Returns the error for a run that fails because of what was rounded."""
    return InputError("the network cannot be executed in these precisions", cause,
                      "Keep what computes indices and sizes in FP32: --keep indices, or the layers by name.")


def refuse_wrong_outputs(network: Outline, results: Mapping[str, np.ndarray]) -> None:
    """Refuses outputs of FP32 whose sizes are not those that the file declares: engines are built for these.

    Raises:
        InputError: a size differs.
    """
    for info in network.outputs:
        declared, array = info.shape, results.get(info.name)
        if declared is None or array is None:
            continue
        if len(declared) != array.ndim or any(isinstance(size, int) and size != own
                                              for size, own in zip(declared, array.shape, strict=True)):
            raise wrong_size_error(info.name, *("×".join(str(size or "?") for size in sizes)
                                                for sizes in (declared, array.shape)))


def _failure(network: Outline, error: RunFailedError) -> str:
    """Returns what failed: "Gather /look fail (indices element out of data bounds, ...)"."""
    found = list(_AT.finditer(error.cause.replace("Non-zero status code returned while ", "\n")))
    if not found:
        return f"the run fail ({error.cause.rstrip('.')})"
    last = found[-1]
    layer = next((layer for layer in network.layers if layer.name == last["name"]), None) or next(
        (layer for layer in sorted(network.layers, key=lambda layer: -len(layer.name))
         if layer.op_type == last["operator"] and last["name"].startswith(layer.name)), None)
    where = f"{last['operator']} {layer.name if layer is not None else last['name']}".strip()
    return f"{where} fail ({last['said'].strip().rstrip('.')})"


def _unlike(array: np.ndarray) -> np.ndarray:
    """Returns NaN for floats; for others values that all differ."""
    kind, unlike = array.dtype.kind, np.empty_like(array)
    if kind == "f":
        unlike[...] = np.nan
    elif kind in "biu":
        unlike[...] = array == 0
    else:
        unlike[...] = ""
    return unlike
