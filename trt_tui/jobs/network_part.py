"""Parts of a network that are cut out, with their inputs and results."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from trt_tui.core.engines.kernel_results import DequantizeScale
from trt_tui.core.exporters.subgraph import extract_subgraph
from trt_tui.core.lowering.lowering_checks import replace_file_precision
from trt_tui.core.measure.fault_location import (
    OutputFault,
    PieceState,
    PieceVerdict,
    find_unequal_rows,
    judge_outputs,
    measure_output_fault,
)
from trt_tui.core.moves.barrier_move import BarrierMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.runner import Profile

Arrays = dict[str, np.ndarray]

OUTPUT_PRECISIONS = {ir.DataType.FLOAT16: Precision.FP16, ir.DataType.BFLOAT16: Precision.BF16}
"""The precisions of the 16-bit types of outputs, to which the results are rounded."""


@dataclass(frozen=True)
class NetworkPart:
    """The network of a piece, with its inputs and its results.

    Attributes:
        feed: The values at its inputs, in FP32 of the whole network.
        expected: The FP64 results by output.
        predicted: The results of the simulation in the precisions of the config; of ONNX Runtime if all are FP32.
        fp32_outputs: The results of ONNX Runtime in FP32.
        precision: The lowest float type in the piece.
        scales: The scales of the outputs that the engine writes as quantized values. Both the engine's and the
            predicted results are compared after DequantizeLinear.
        approximated_operators: The operators in FP32 whose fast approximation is part of the predicted results.
    """

    network: Network
    config: PrecisionConfig
    feed: Arrays
    expected: Arrays
    predicted: Arrays
    fp32_outputs: Arrays
    precision: Precision
    scales: Mapping[str, DequantizeScale] = field(default_factory=dict)
    approximated_operators: tuple[str, ...] = ()

    def judge(self, outputs: Mapping[str, np.ndarray], *, checks_rows: bool = False) -> PieceVerdict:
        """Returns the verdict on the outputs of an engine of this part.

        Args:
            checks_rows: True to judge only whether equal samples of a batch have equal results.
        """
        faults = [self._measure_fault(name, outputs[name]) for name in self.expected if name in outputs]
        if not checks_rows:
            return judge_outputs(faults)
        unequal = find_unequal_rows({name: outputs[name] for name in self.expected if name in outputs}, self.expected)
        return PieceVerdict(PieceState.FAULTY if unequal else PieceState.SOUND,
                            f"equal samples of one batch differ at {', '.join(unequal)}" if unequal else "",
                            tuple(sorted(faults, key=lambda fault: -fault.ratio)))

    def _measure_fault(self, name: str, output: np.ndarray) -> OutputFault:
        scale, predicted = self.scales.get(name), self.predicted[name]
        types = [self.precision, *([OUTPUT_PRECISIONS[dtype]] if (dtype := self.network.ir_value(name).dtype) in
                                   OUTPUT_PRECISIONS else [])]
        return measure_output_fault(name, self.expected[name], output, predicted if scale is None else
                                    scale.round_values(predicted.astype(np.float64)), min(types, key=precision_rank),
                                    self.fp32_outputs[name])


def cut_network(network: Network, layer_names: Collection[str], inputs: Sequence[str], outputs: Sequence[str],
                feed: Mapping[str, np.ndarray]) -> Network:
    """Returns the part of a network between some tensors, with the fusion groups of the network.

    An input without a declared shape gets the shape of its value.

    Raises:
        InputError: The outputs need other tensors too.
    """
    model = extract_subgraph(network.model, inputs, outputs)
    for value in model.graph.inputs:
        shape = feed[value.name or ""].shape
        if value.shape is None or len(value.shape) != len(shape):
            value.shape = ir.Shape(shape)
    names = set(layer_names)
    groups = [group for group in network.groups if names.issuperset(group.layers)]
    grouped = {name for group in groups for name in group.layers}
    is_split = any(name not in grouped and network.find_group(name) is not None for name in names)
    return network.copy_with_model(model, None if is_split else groups)


def select_moves_of_network(config: PrecisionConfig, network: Network) -> PrecisionConfig:
    """Returns a config with only the moves whose subjects a part of the network has, without fusion barriers."""
    names = {group.name for group in network.groups}
    moves = {(kind, subject): move for (kind, subject), move in config.moves.items()
             if kind != BarrierMove.kind and (subject in names or network.has_tensor(subject))}
    return replace_file_precision(network, replace(config, moves=moves))


def find_part_profile(network: Network, part: Network, profile: Profile, feed: Mapping[str, np.ndarray]) -> Profile:
    """Returns the shapes of the dynamic inputs of a part: those of the whole where a dimension has the same name."""
    sizes: dict[object, tuple[int, int, int]] = {}
    for info in network.inputs:
        for axis, size in enumerate(info.shape or ()):
            if isinstance(size, str) and info.name in profile:
                low, usual, high = (shape[axis] for shape in profile[info.name])
                sizes.setdefault(size, (low, usual, high))
    part_profile: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {}
    for info in part.inputs:
        if info.shape is not None and not all(isinstance(size, int) for size in info.shape):
            bounds = [sizes.get(size, (actual, actual, actual)) if isinstance(size, str) else (actual, actual, actual)
                      for size, actual in zip(info.shape, feed[info.name].shape, strict=True)]
            part_profile[info.name] = (tuple(axis[0] for axis in bounds), tuple(axis[1] for axis in bounds),
                                       tuple(axis[2] for axis in bounds))
    return part_profile
