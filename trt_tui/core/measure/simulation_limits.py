"""Reasons for doubt in a simulation: effects that no value covers, and patterns whose engines lose more than simulated.

Not covered are outputs that are not judged, and layers inside control flow, which the simulation leaves in FP32.

Each gap of a pattern is in dB of SQNR at the output, measured with TensorRT 8.6 on an H200. It is the simulated value
minus the value of the engine, or the difference between two builds. A simulated result that meets its target by less
than the gap may miss it in the engine.

A config can fail to execute although FP32 executes on the same samples: the cause is rounding, not the data.

For example, a rounded index may be outside its table, or a rounded size may not fit the tensor that it divides. An
engine computes an undefined value there, so the run misses every target. Its float outputs count as NaN, its integer
outputs as different, and the reason is a caveat of its accuracy.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from trt_tui.core.lowering.network_rewrite import (
    has_half_subgraph_results,
    reduces_precision,
    subgraph_layers_text,
)
from trt_tui.core.lowering.rulebook import count_accumulator_roundings, is_depthwise, is_image_convolution
from trt_tui.core.measure.results import SIMULATION_GAP, Accuracy, Caveat
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, Layer, NetworkOutline
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import INNER_PRODUCTS, PRODUCTS
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, RunFailedError, wrong_shape_error
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, name_list_text


def make_unjudged_output_caveats(
    unjudged_outputs: Mapping[str, str], kind: str = "unjudged output"
) -> tuple[Caveat, ...]:
    """Returns a caveat for each network output that is not judged.

    Args:
        unjudged_outputs: The reason why an output is not judged, by name of the output; "" for no doubt.
    """
    return tuple(
        Caveat(
            kind,
            f"the output {escape_hidden_characters(name)} is not judged: {escape_hidden_characters(reason)}",
        )
        for name, reason in unjudged_outputs.items()
        if reason
    )


def find_unsimulated_layer_caveats(network: NetworkOutline, config: PrecisionConfig) -> tuple[Caveat, ...]:
    """Returns a caveat if a config reduces precisions and float layers stand inside control flow."""
    layers_text = subgraph_layers_text(network)
    if not layers_text or not reduces_precision(network, config):
        return ()
    is_lower_in_file = any(
        config.precision_of(group) is Precision.FILE and has_half_subgraph_results(network, group)
        for group in network.groups
    )
    engines_text = (
        "but not all in the file"
        if is_lower_in_file
        else "as a strongly typed engine runs them; a weakly typed one may run them in lower precisions"
    )
    return (Caveat("unsimulated layers", f"{layers_text}: simulated in FP32, {engines_text}"),)


@dataclass(frozen=True)
class KnownGapPattern:
    """A pattern of layers in one precision, with the measured gap between simulation and engine.

    Attributes:
        precision: The precision in which the pattern has the gap.
        matches_layer: Returns True if a layer of a group has the pattern.
        text: The pattern as a plural noun phrase.
        gap_db: Simulated minus built SQNR at the output, in dB.
        measured_on: The network in which the gap was measured, with both values.
    """

    precision: Precision
    matches_layer: Callable[[Network, FusionGroup, Layer], bool]
    text: str
    gap_db: float
    measured_on: str


def _is_large_depthwise_convolution(network: Network, group: FusionGroup, layer: Layer) -> bool:
    shape = network.shape(layer.inputs[1]) or () if len(layer.inputs) > 1 else ()
    return is_depthwise(network, layer) and shape[2:] != (3, 3)


def _has_unsimulated_accumulator(network: Network, group: FusionGroup, layer: Layer) -> bool:
    """Returns True if TensorRT adds the products of a layer in an FP16 accumulator that is not simulated."""
    if layer.op_type in INNER_PRODUCTS and not layer.domain:
        return True
    if layer.op_type not in PRODUCTS or len(layer.inputs) < 2:
        return False
    first, second = (network.shape(tensor) for tensor in layer.inputs[:2])
    depth = (first or ())[-1:] if layer.op_type == "MatMul" else (second or ())[1:]
    return count_accumulator_roundings(network, layer) == 1 and not all(
        isinstance(size, int) for size in depth or (None,)
    )


def _is_gemm_after_layer_normalisation(network: Network, group: FusionGroup, layer: Layer) -> bool:
    producer = network.producer.get(layer.inputs[0], "")
    return (
        layer.op_type == "Gemm"
        and (producing_group := network.find_group(producer)) is not None
        and producing_group.operator in ("LayerNormalization", "LayerNorm")
    )


def _has_fp16_accumulator_in_file(network: Network, group: FusionGroup, layer: Layer) -> bool:
    """Returns True if a layer has FP16 products in the model file: their FP16 accumulator is not simulated."""
    return (
        group.file_precision is not None
        and group.file_precision.nearest_precision is Precision.FP16
        and (count_accumulator_roundings(network, layer) > 1 or _has_unsimulated_accumulator(network, group, layer))
    )


GAP_PATTERNS: Sequence[KnownGapPattern] = (
    KnownGapPattern(
        Precision.FP16,
        lambda network, group, layer: (
            layer.op_type in ("Conv", "ConvTranspose") and len(network.shape(layer.inputs[1]) or ()) == 3
        ),
        "1-D convolutions in FP16",
        4.9,
        "HiFi-GAN: 52.3 dB simulated, 47.4 built",
    ),
    KnownGapPattern(
        Precision.FP16,
        _is_large_depthwise_convolution,
        "depthwise convolutions larger than 3x3 in FP16",
        2.7,
        "ConvNeXt: two builds gave 59.4 and 56.7 dB",
    ),
    KnownGapPattern(
        Precision.FP16,
        _has_unsimulated_accumulator,
        "FP16 products whose accumulator is not simulated",
        4.8,
        "ViT-S: 4.8 dB in the median of 11 configs; a GRU: 62.8 dB simulated, 66.6 built",
    ),
    KnownGapPattern(
        Precision.INT8,
        _is_gemm_after_layer_normalisation,
        "INT8 Gemms after a LayerNormalization",
        4.0,
        "ConvNeXt: 33.9 dB simulated, 29.9 and 32.5 built",
    ),
    KnownGapPattern(
        Precision.FP16,
        lambda network, group, layer: is_image_convolution(network, layer) and not is_depthwise(network, layer),
        "7x7 convolutions with a stride of 2 on at most 4 channels in FP16",
        5.9,
        "DenseNet: 49.2 dB simulated, 43.3 built; at the Conv 69.1 and 64.7",
    ),
    KnownGapPattern(
        Precision.FILE,
        _has_fp16_accumulator_in_file,
        "FP16 products of the file, which are simulated with an FP32 accumulator",
        4.8,
        "ViT-S: 4.8 dB in the median of 11 configs",
    ),
)
"""All patterns of known gaps. The gaps of HiFi-GAN, ConvNeXt and DenseNet are the worst of the networks on which the
simulation was not developed. The gap of ViT-S was measured against its simulation with FP32 accumulators, as
accumulators without a model are simulated."""

SIMULATION_GAPS = {
    Precision.INT8: (1.1, "DistilBERT: 37.6 dB simulated, 36.5 built"),
    Precision.FP16: (1.4, "RegNet: 28.8 dB simulated, 27.4 built"),
}
"""The largest gap in dB among the same networks without a pattern of known gaps, by the lowest precision of a config,
with the network in which it was measured."""


def find_known_gap_caveats(network: Network, config: PrecisionConfig) -> tuple[Caveat, ...]:
    """Returns a caveat for each pattern of known gaps that a config has in a network, and one for the gap without them."""
    caveats = []
    for pattern, layers in zip(GAP_PATTERNS, _find_layers_of_gap_patterns(network), strict=True):
        names = [
            name
            for group, name in layers
            if pattern.precision
            in (config.precision_of(group), group.resolve_file_precision(config.precision_of(group)))
        ]
        if names:
            such = f"{counted_noun_text(len(names), 'layer')} such as {names[0]}" if len(names) > 1 else names[0]
            caveats.append(
                Caveat(
                    "known gap",
                    f"engines lost up to {pattern.gap_db:g} dB more than simulated with {pattern.text} "
                    f"({such}; TensorRT 8.6, {pattern.measured_on})",
                    gap_db=pattern.gap_db,
                )
            )
    precisions = {group.resolve_file_precision(config.precision_of(group)) for group in network.groups}
    if (lowest := next((precision for precision in SIMULATION_GAPS if precision in precisions), None)) is not None:
        gap_db, measured_on = SIMULATION_GAPS[lowest]
        caveats.append(
            Caveat(
                SIMULATION_GAP,
                f"engines lost up to {gap_db:g} dB more than simulated in {lowest.label} (TensorRT 8.6, {measured_on})",
                gap_db,
            )
        )
    return tuple(caveats)


@functools.lru_cache(maxsize=1)
def _find_layers_of_gap_patterns(network: Network) -> list[list[tuple[FusionGroup, str]]]:
    """Returns the layers of each gap pattern together with their groups, regardless of precision."""
    return [
        [
            (group, name)
            for group in network.groups
            for name in group.layers
            if pattern.matches_layer(network, group, network.get_layer(name))
        ]
        for pattern in GAP_PATTERNS
    ]


_FAILED_NODE_PATTERN = re.compile(
    r"running (?P<operator>\w+) node\. Name: ?'(?P<name>[^']*)' ?(?:Status Message: )?(?P<said>.*)"
)
"""The message of ONNX Runtime about the node that failed. The outer node of a subgraph comes before the inner one."""


FAILED_RUN_KIND = "failed run"
"""The kind of the caveat of a failed run."""


class FailedRunOutputs(dict[str, np.ndarray]):
    """The outputs that replace those of a failed run: NaN for floats, and different values for all other types.

    Attributes:
        caveat: The reason of the failure.
    """

    def __init__(self, expected: Mapping[str, np.ndarray], caveat: Caveat) -> None:
        super().__init__((name, _make_mismatching_array(array)) for name, array in expected.items())
        self.caveat = caveat


def find_simulation_failure_reason(accuracy: Accuracy) -> str:
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
    loose = [
        name
        for name in network.index_groups
        if config is not None and config.precision_of(network.get_group(name)) is not Precision.FP32
    ]
    remedy = (
        f"--keep indices keeps {counted_noun_text(len(loose), 'fused layer')} in FP32 ({name_list_text(loose, 3)})"
        if loose
        else "keep the layers that compute its inputs in FP32 by name, with --keep"
    )
    return Caveat(
        FAILED_RUN_KIND,
        f"rounding makes {_run_failure_text(network, error)}, and FP32 does not fail; {remedy}",
        fails_run=True,
    )


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
    return InputError(
        "the network cannot be executed in these precisions",
        cause,
        "Keep layers that compute indices and sizes in FP32: --keep indices, or the layers by name.",
    )


def refuse_undeclared_output_sizes(network: NetworkOutline, outputs: Mapping[str, np.ndarray]) -> None:
    """Raises an error if FP32 outputs have other sizes than the network file declares. Engines use the declared sizes.

    Raises:
        InputError: a size differs.
    """
    for info in network.outputs:
        declared, array = info.shape, outputs.get(info.name)
        if declared is None or array is None:
            continue
        if len(declared) != array.ndim or any(
            isinstance(size, int) and size != own for size, own in zip(declared, array.shape, strict=True)
        ):
            raise wrong_shape_error(
                info.name, *("×".join(str(size or "?") for size in sizes) for sizes in (declared, array.shape))
            )


def _run_failure_text(network: NetworkOutline, error: RunFailedError) -> str:
    """Returns the failure as a text: "Gather /look fail (indices element out of data bounds, ...)"."""
    matches = list(_FAILED_NODE_PATTERN.finditer(error.cause.replace("Non-zero status code returned while ", "\n")))
    if not matches:
        return f"the run fail ({error.cause.rstrip('.')})"
    last = matches[-1]
    layer = next((layer for layer in network.layers if layer.name == last["name"]), None) or next(
        (
            layer
            for layer in sorted(network.layers, key=lambda layer: -len(layer.name))
            if layer.op_type == last["operator"] and last["name"].startswith(layer.name)
        ),
        None,
    )
    node_text = f"{last['operator']} {layer.name if layer is not None else last['name']}".strip()
    return f"{node_text} fail ({last['said'].strip().rstrip('.')})"


def _make_mismatching_array(expected: np.ndarray) -> np.ndarray:
    """Returns an array that differs everywhere from the expected one: NaN for floats, unequal values for all other
    types."""
    if expected.dtype.kind in "biu":
        return np.asarray(expected == 0, expected.dtype)
    return np.full_like(expected, np.nan if expected.dtype.kind == "f" else "")
