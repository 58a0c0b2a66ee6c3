"""The opened network: its outline, its model, and access to its tensors and weights."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.core.network import hashes, supported_precisions
from trt_tui.core.network.channels.norm_finder import find_zero_cost_support
from trt_tui.core.network.fusion.groups import build_fusion_groups
from trt_tui.core.network.graph import ConstantValues, LayerGraph, count_macs, find_groups_computing_indices
from trt_tui.core.network.inference import (
    SmallTensorValues,
    check_constant_growth,
    infer_folded_shapes,
    infer_plugin_types,
)
from trt_tui.core.network.known_defects import find_defect_sites, find_known_issues
from trt_tui.core.network.layers import FusionGroup, NetworkOutline, QdqFinding, ReferenceWeights, Shape
from trt_tui.core.network.opening import OpenedModel, open_model, propose_original_weights, quantized_weights_note
from trt_tui.core.network.operators import plugin_note
from trt_tui.core.network.opset_conversion import convert_opset, detach_big_weights
from trt_tui.core.precision import FP16_MAX
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError, TrtTuiError

FP16_MASK_VALUE = FP16_MAX / 2
"""The value that constants beyond the range of FP16 are clamped to.

Such constants are masks (-3.4e38 before a Softmax). Half of the FP16 range leaves room for the scores that are added to
them."""

_MAX_FOLDED_LAYERS = 5_000
"""The maximum number of layers of a network whose shapes are folded, which takes about a second."""


class Network(NetworkOutline):
    """An opened network: its outline, its model, its tensors and its weights. It is immutable, including its model.

    Args:
        opened_model: The result of `trt_tui.core.network.opening.open_model`.
        path: The file, for names and hashes.
        get_backend: Returns the backend that evaluates constant expressions; called at the first such expression.
        groups: The fusion groups; None to determine them by the fusion rules.
        has_operator_library: True if the backend has a library of operators.

    Attributes:
        model: The ONNX model at `opset`.
        constant_amax, is_mask, mask_magnitude_threshold: Those of `trt_tui.core.network.graph.ConstantValues`.
        graph: The layers and tensors. `producer`, `consumers`, `constant_tensors`, `static_tensors`, `node`,
            `input_tensors`, `ir_value`, `is_fp32` and `is_float_tensor` are the graph's.
        external_files: The data files that contain the weights.
        source_model: The model with the precisions of the file; None if the file is FP32.
        blocking_plugins: The plugin before each tensor that cannot be simulated, by tensor name.
        value_sized_tensors: Tensors whose sizes depend on computed values, as in
            `trt_tui.core.network.graph.LayerGraph`.

    Raises:
        InputError: the network computes constants that do not fit in memory.
    """

    def __init__(
        self,
        opened_model: OpenedModel,
        path: Path,
        get_backend: Callable[[], Backend] | None = None,
        groups: Sequence[FusionGroup] | None = None,
        *,
        has_operator_library: bool = False,
    ) -> None:
        self.model = opened_model.model
        self.external_files = tuple(opened_model.external_files)
        self.graph = graph = LayerGraph(self.model, has_operator_library)
        self.producer, self.consumers = graph.producer, graph.consumers
        self.constant_tensors, self.static_tensors, self.blocking_plugins = (
            graph.constant_tensors,
            graph.static_tensors,
            graph.blocking_plugins,
        )
        self.value_sized_tensors = graph.value_sized_tensors
        self.node, self.input_tensors, self.ir_value = graph.node, graph.input_tensors, graph.ir_value
        self.is_fp32, self.is_float_tensor = graph.is_fp32, graph.is_float_tensor
        blocking_plugins = [
            (name, graph.by_name[name].op_type) for name in dict.fromkeys(self.blocking_plugins.values())
        ]
        notes = (*opened_model.notes, *([plugin_note(blocking_plugins)] if blocking_plugins else []))
        check_constant_growth(
            graph,
            self.model,
            path.name,
            sum(file.stat().st_size for file in (path, *self.external_files)),
        )
        self.source_model = opened_model.source_model
        groups = build_fusion_groups(graph) if groups is None else tuple(groups)
        qdq_findings: tuple[QdqFinding, ...] | None = None
        qdq_candidates: tuple[QdqFinding, ...] = ()
        if self.source_model is not None:
            # Imported late, because the process of the user interface loads this module too, and opens no network.
            from trt_tui.core.network.qdq.check import find_qdq_findings, qdq_note_lines

            groups = tuple(
                replace(group, file_precision=self.source_model.find_file_precision(group, graph.by_name))
                for group in groups
            )
            qdq_findings, qdq_candidates = find_qdq_findings(graph, groups, self.source_model)
            notes = (*notes, *qdq_note_lines(qdq_findings or ()))
        output_tensors = {group.final_tensor for group in groups} | {
            name for layer in graph.layers for name in layer.outputs[:1]
        }
        hash_by_layer = hashes.hash_layers(graph)
        super().__init__(
            path.name,
            path,
            graph.layers,
            groups,
            graph.inputs,
            graph.outputs,
            {tensor: graph.shape(tensor) for tensor in output_tensors},
            hashes.hash_structure(
                graph, {**opened_model.unused_weights, **self.model.graph.initializers}, hash_by_layer
            ),
            graph.opset,
            {name: digest[:3] for name, digest in hash_by_layer.items()},
            notes,
            {tensor: amax for tensor, amax in opened_model.quantized_ranges.items() if graph.has_tensor(tensor)},
            find_zero_cost_support(graph, groups),
            find_known_issues(graph, graph.by_name, groups),
            supported_precisions.find_tensors_with_shared_range(graph),
            find_groups_computing_indices(graph, groups),
            qdq_findings,
            find_defect_sites(graph, groups, opened_model.linear_grid_samples),
            qdq_candidates,
        )
        self._constant_values = values = ConstantValues(graph, self.model, get_backend)
        self.constant_amax, self.is_mask = values.constant_amax, values.is_mask
        self.mask_magnitude_threshold = values.mask_magnitude_threshold
        self._converted_models: dict[tuple[int, int], ir.Model] = {}
        self._get_backend, self._has_operator_library = get_backend, has_operator_library

    def copy_with_model(self, model: ir.Model, groups: Sequence[FusionGroup]) -> Network:
        """Returns a network of the same file with another model and the fusion groups of that model."""
        return Network(
            OpenedModel(model, list(self.external_files)),
            self.path,
            self._get_backend,
            groups,
            has_operator_library=self._has_operator_library,
        )

    def with_reference_weights(self, reference_weights: ReferenceWeights) -> Network:
        """Returns the same network with another choice of the weights of FP32 runs."""
        network, source_model = copy.copy(self), self.source_model
        obsolete_note = quantized_weights_note(source_model) if source_model is not None else ""
        notes = (
            *(note for note in self.notes if note != obsolete_note),
            reference_weights.weights_source_text(self.name),
        )
        outline = replace(self.build_outline(), notes=notes, reference_weights=reference_weights)
        network.__dict__.update({field.name: getattr(outline, field.name) for field in fields(NetworkOutline)})
        return network

    def build_outline(self) -> NetworkOutline:
        return NetworkOutline(**{field.name: getattr(self, field.name) for field in fields(NetworkOutline)})

    def build_outline_for_input_sizes(self, input_sizes: Mapping[str, Sequence[int]]) -> NetworkOutline:
        """Returns the network outline with the shapes and multiply-accumulates that follow from the given input sizes.

        Shapes and counts that the file already determines are kept.

        Args:
            input_sizes: Sizes by input name. If all inputs with an open first axis share its size, that size is a batch
                and counts as 1.
        """
        outline = self.build_outline()
        if len(outline.layers) > _MAX_FOLDED_LAYERS or all(layer.macs is not None for layer in outline.layers):
            return outline
        open_batch_inputs = [info.name for info in self.inputs if info.shape and not isinstance(info.shape[0], int)]
        is_batched = len({tuple(input_sizes[name][:1]) for name in open_batch_inputs if name in input_sizes}) == 1
        model, _ = detach_big_weights(self.model)
        for info in model.graph.input:
            for axis, (dim, size) in enumerate(
                zip(info.type.tensor_type.shape.dim, input_sizes.get(info.name, ()), strict=False)
            ):
                if not dim.HasField("dim_value"):
                    dim.dim_value = 1 if is_batched and not axis else size
        shape_by_tensor = infer_folded_shapes(self.graph, model, SmallTensorValues(self.graph))
        layers = tuple(
            layer
            if layer.macs is not None
            else replace(
                layer, macs=count_macs(self.node(layer.name), lambda value: shape_by_tensor.get(value.name or ""))
            )
            for layer in outline.layers
        )
        shapes = {
            name: shape_by_tensor.get(name, shape)
            if shape is None or None in shape[1:] or any(isinstance(size, str) for size in shape[1:])
            else shape
            for name, shape in outline.shapes.items()
        }
        return replace(outline, layers=layers, shapes=shapes)

    # -- tensors ------------------------------------------------------------------------------------------------

    def has_tensor(self, name: str) -> bool:
        return self.graph.has_tensor(name)

    def shape(self, tensor: str) -> Shape | None:
        return self.graph.shape(tensor)

    # -- weights ------------------------------------------------------------------------------------------------

    def constant_value(self, tensor: str) -> np.ndarray:
        """Returns the value of a constant tensor.

        A constant that scales an attention may be computed from sizes in the file; its value is known too.

        Raises the errors of `trt_tui.core.network.graph.ConstantValues.constant_value`.
        """
        number = self.zero_cost_support.attention_scale_constants.get(tensor)
        if number and tensor not in self.constant_tensors:
            return np.full([1] * len(self.shape(tensor) or ()), number, np.float32)
        return self._constant_values.constant_value(tensor)

    def find_constant_value(self, tensor: str) -> np.ndarray | None:
        """Returns the value of a constant tensor; None if it cannot be computed."""
        try:
            return self.constant_value(tensor)
        except TrtTuiError:
            return None

    @property
    def epsilon_readers(self) -> Mapping[str, Collection[str]]:
        """The epsilons that FP16 rounds to zero; see `trt_tui.core.network.graph.ConstantValues`."""
        return self._constant_values.epsilon_readers

    @property
    def masked_tensors(self) -> frozenset[str]:
        """The tensors that contain mask values; see `trt_tui.core.network.graph.ConstantValues`."""
        return self._constant_values.masked_tensors

    def convert_model_to_opset(self, opset: int, model: ir.Model | None = None) -> ir.Model:
        """Returns a model converted to a higher opset; the model itself if its opset is not lower. Node names are kept.

        Args:
            model: The model of the network by default, or that of its file, which must exist as long as the network.

        Raises:
            InputError: onnx's version converter cannot convert the network.
        """
        model = self.model if model is None else model
        before, key = model.graph.opset_imports.get("", 0), (id(model), opset)
        if opset <= before:
            return model
        if key not in self._converted_models:
            try:
                self._converted_models[key] = convert_opset(model, opset)
            except Exception as error:
                raise InputError(
                    f"{self.name} cannot be converted from opset {before} to {opset}",
                    str(error),
                    getattr(error, "next_step", "") or f"Export the network again with opset {opset}.",
                ) from None
        return self._converted_models[key]

    def sha256(self) -> str:
        return hashes.hash_files((self.path, *self.external_files))


def open_network(
    path: Path | str,
    get_backend: Callable[[], Backend] | None = None,
    *,
    has_operator_library: bool = False,
    reference: Path | str | None = None,
) -> Network:
    """Opens an ONNX file as a `Network`.

    Args:
        get_backend: Returns the backend that evaluates the network's constant expressions (weights that the file
            computes from others), such as `trt_tui.backends.registry.get_simulation_backend`. Without a backend, the
            network opens, and `Network.constant_value` raises an error for such weights.
        has_operator_library: True if the backend has a library of operators and runs plugins.
        reference: The FP32 network that a quantized network was made from. The result gets its weights where
            `trt_tui.core.network.opening` finds them. Unused if the network is FP32.

    Raises:
        InputError: the errors of `trt_tui.core.network.opening.open_model`, `Network` and
            `trt_tui.core.network.inference.infer_plugin_types`; or the reference is itself quantized or in 16 bits.
    """
    path = Path(path)
    with _pause_garbage_collection():
        opened_model = open_model(path)
        if has_operator_library and get_backend is not None:
            infer_plugin_types(opened_model.model, get_backend())
        if reference is not None and opened_model.source_model is not None:
            _propose_original_weights_from_file(opened_model, Path(reference), get_backend)
        return Network(opened_model, path, get_backend, has_operator_library=has_operator_library)


def _propose_original_weights_from_file(
    opened_model: OpenedModel, reference: Path, get_backend: Callable[[], Backend] | None
) -> None:
    fp32_model = open_model(reference)
    if fp32_model.source_model is not None:
        raise InputError(
            f"{reference.name} is itself quantized or in 16 bits",
            "its weights are not those of FP32",
            "Name the FP32 network.",
        )
    propose_original_weights(opened_model, fp32_model, reference.name, get_backend)
    opened_model.external_files += [reference, *fp32_model.external_files]


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Disables garbage collection for the duration of a with block.

    The objects of an opened network live as long as the network. Searching them for garbage takes 40 % of the time of
    opening.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
