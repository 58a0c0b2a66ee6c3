"""Configs whose execution fails although FP32 executes on the same samples: the cause is rounding, not the data.

For example, a rounded index may be outside its table, or a rounded size may not fit the tensor that it divides. An
engine computes an undefined value there, so the run misses every target. Its float outputs count as NaN, its integer
outputs as different, and the reason is a caveat of its accuracy.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from trt_tui.core.measure.results import Accuracy, Caveat
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, RunFailedError, wrong_shape_error
from trt_tui.formatting import counted_noun_text, name_list_text

_FAILED_NODE_PATTERN = re.compile(
    r"running (?P<operator>\w+) node\. Name: ?'(?P<name>[^']*)' ?(?:Status Message: )?(?P<said>.*)")
"""The message of ONNX Runtime about the node that failed. The outer node of a subgraph comes before the inner one."""


FAILED_RUN_KIND = "failed run"
"""The kind of the caveat of a failed run."""


class FailedRunOutputs(dict[str, np.ndarray]):
    """The outputs that replace those of a failed run: NaN for floats, and different values for all other types.

    Attributes:
        caveat: The reason of the failure.
    """

    caveat: Caveat

    def __init__(self, expected: Mapping[str, np.ndarray], caveat: Caveat) -> None:
        super().__init__((name, _make_mismatching_array(array)) for name, array in expected.items())
        self.caveat = caveat


def find_failure_reason(accuracy: Accuracy) -> str:
    """Returns the reason why a run failed, from its accuracy; "" if it did not fail."""
    return next((caveat.text for caveat in accuracy.caveats if caveat.kind == FAILED_RUN_KIND), "")


def is_entirely_fp32(network: NetworkOutline, config: PrecisionConfig) -> bool:
    """Returns True if every group runs in FP32, so that rounding cannot be the cause of a failure."""
    return all(config.precision_of(group) is Precision.FP32 for group in network.groups)


def run_failure_caveat(network: NetworkOutline, config: PrecisionConfig | None, error: RunFailedError) -> Caveat:
    """Returns the caveat of a config that fails at run time, with the failed operator and the next step.

    Args:
        config: None for a network whose config is unknown.
    """
    loose = [name for name in network.index_groups
             if config is not None and config.precision_of(network.get_group(name)) is not Precision.FP32]
    remedy = (
        f"--keep indices keeps {counted_noun_text(len(loose), 'fused layer')} in FP32 ({name_list_text(loose, 3)})"
        if loose else "keep the layers that compute its inputs in FP32 by name, with --keep")
    return Caveat(FAILED_RUN_KIND,
                  f"rounding makes {_run_failure_text(network, error)}, and FP32 does not fail; {remedy}",
                  fails_run=True)


@contextmanager
def attribute_failures_to_rounding(network: NetworkOutline) -> Iterator[None]:
    """Converts an execution failure of a network with rounded layers into an error that names rounding as the cause.

    Without this conversion the error would blame the data.

    Raises:
        InputError: the execution failed.
    """
    try:
        yield
    except RunFailedError as error:
        raise rounding_failure_error(f"rounding makes {_run_failure_text(network, error)}") from None


def rounding_failure_error(cause: str) -> InputError:
    return InputError("the network cannot be executed in these precisions", cause,
                      "Keep layers that compute indices and sizes in FP32: --keep indices, or the layers by name.")


def refuse_undeclared_output_sizes(network: NetworkOutline, outputs: Mapping[str, np.ndarray]) -> None:
    """Raises an error if FP32 outputs have other sizes than the network file declares, because engines are built for
    these.

    Raises:
        InputError: a size differs.
    """
    for info in network.outputs:
        declared, array = info.shape, outputs.get(info.name)
        if declared is None or array is None:
            continue
        if len(declared) != array.ndim or any(isinstance(size, int) and size != own
                                              for size, own in zip(declared, array.shape, strict=True)):
            raise wrong_shape_error(info.name, *("×".join(str(size or "?") for size in sizes)
                                                 for sizes in (declared, array.shape)))


def _run_failure_text(network: NetworkOutline, error: RunFailedError) -> str:
    """Returns the failure as a text: "Gather /look fail (indices element out of data bounds, ...)"."""
    matches = list(_FAILED_NODE_PATTERN.finditer(error.cause.replace("Non-zero status code returned while ", "\n")))
    if not matches:
        return f"the run fail ({error.cause.rstrip('.')})"
    last = matches[-1]
    layer = next((layer for layer in network.layers if layer.name == last["name"]), None) or next(
        (layer for layer in sorted(network.layers, key=lambda layer: -len(layer.name))
         if layer.op_type == last["operator"] and last["name"].startswith(layer.name)), None)
    node_text = f"{last['operator']} {layer.name if layer is not None else last['name']}".strip()
    return f"{node_text} fail ({last['said'].strip().rstrip('.')})"


def _make_mismatching_array(expected: np.ndarray) -> np.ndarray:
    """Returns an array that differs everywhere from the expected one: NaN for floats, unequal values for all other
    types."""
    kind, unlike = expected.dtype.kind, np.empty_like(expected)
    if kind == "f":
        unlike[...] = np.nan
    elif kind in "biu":
        unlike[...] = expected == 0
    else:
        unlike[...] = ""
    return unlike
