"""Lowering to explicit quantization for weakly typed releases: Q/DQ nodes in the graph, float precisions as layer
constraints.

The only float type in the graph is FP32. The float precision of each layer is set as a layer constraint, which TensorRT
obeys. Layers that Q/DQ make INT8 get no constraint, so that TensorRT fuses them freely, with one exception. TensorRT
8.6 fuses a residual Add into the Conv before it, whatever reads the sum. It has no such kernel with INT8 inputs and a
float result, and the build fails ("the node being incorrectly marked as an int8 node"). If the number of channels is
not a multiple of 32, the build may fail too ("buildRefitEngine: Assertion engine failed"). In both cases the Add is
constrained to the surrounding float precision, so that it stays a separate layer.

Casts in the graph do not work for these releases. On TensorRT 8.6 a network typed FP16 by Casts ran in FP32, and one
that also had Q/DQ did not build.
"""

from collections.abc import Mapping, Set
from dataclasses import replace

from trt_tui.core.lowering.lowering_checks import (
    WEAK_PRECISIONS,
    refuse_unsupported_precisions,
    replace_all_file_precisions,
    weak_typing_notes,
)
from trt_tui.core.lowering.network_rewrite import rewrite_network_for_config
from trt_tui.core.lowering.rulebook import find_boundary_type
from trt_tui.core.lowering.typed_network import TypedNetwork, lower_rewritten_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, LayerKind
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import LayerConstraints


def lower_to_explicit_quantization(
    network: Network, config: PrecisionConfig, ranges: Mapping[str, float]
) -> tuple[TypedNetwork, LayerConstraints]:
    """Lowers a config to a network with Q/DQ nodes, and to the layer constraints of the float layers.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.

    Raises:
        InputError: an INT8 layer's input has no range, or a layer has a quantized type other than INT8.
    """
    config = replace_all_file_precisions(network, config)
    refuse_unsupported_precisions(network, config, WEAK_PRECISIONS, "TensorRT 8.6")
    rewritten_network = rewrite_network_for_config(network, config)
    typed_network = lower_rewritten_network(rewritten_network, config, ranges, with_casts=False)
    network = rewritten_network.network
    precisions: dict[str, Precision] = {}
    output_types: dict[str, Precision] = {}
    quantized = {
        (site.layer, site.index)
        for group in network.groups
        if config.precision_of(group) is Precision.INT8
        for site in group.activation_qdq_sites()
    }
    flags = set()
    for group in network.groups:
        precision = config.precision_of(group)
        flags.add(precision)
        if precision is Precision.INT8:
            boundary_type = find_boundary_type(group, precision, config.other)
            flags.add(boundary_type)
            if _has_unfusable_residual_add(network, group, quantized):
                precisions.update((name, boundary_type) for name in group.layers if name not in group.main_layers)
                output_types.update((name, boundary_type) for name in group.layers)
            continue
        computing = [name for name in group.layers if network.get_layer(name).kind is LayerKind.COMPUTE]
        precisions.update((name, precision) for name in computing)
        output_types.update((name, precision) for name in computing)
    flags -= {Precision.FP32, Precision.TF32}
    if not flags:
        precisions.clear()  # all layers are FP32 without constraints
        output_types.clear()
    typed_network = replace(typed_network, notes=(*typed_network.notes, *weak_typing_notes(network, flags)))
    return typed_network, LayerConstraints(
        precisions, output_types, {}, frozenset(flags), layer_names=tuple(layer.name for layer in network.layers)
    )


def _has_unfusable_residual_add(network: Network, group: FusionGroup, quantized_inputs: Set[tuple[str, int]]) -> bool:
    """Returns True if a fusion group has a residual Add that TensorRT 8.6 fails to fuse into the Conv before it."""
    if not any(site.role == "skip" for site in group.sites):
        return False
    tail = group.final_tensor
    shape = network.shape(tail)
    if shape is None or len(shape) < 2 or not isinstance(shape[1], int) or shape[1] % 32:
        return True
    return tail in {info.name for info in network.outputs} or any(
        (layer.name, index) not in quantized_inputs
        for layer in network.layers
        for index, tensor in enumerate(layer.inputs)
        if tensor == tail
    )
