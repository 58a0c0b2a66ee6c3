"""The export of a lowered network as an ONNX file with its external weights beside it.

External data are copied, never linked. onnx and onnx-ir refuse to read a data file that is a symbolic link or has more
than one hard link. A link would make the export unreadable, and a hard link the source too. If the file system can
share blocks between files (btrfs, XFS), the copy takes neither time nor space.
"""

import contextlib
import errno
import filecmp
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.core.exporters.formats import ExportContext, WrittenExport
from trt_tui.core.lowering.typed_network import is_quantized_matmul, lower_from_source_model
from trt_tui.core.network.network import Network
from trt_tui.core.precision import MIN_UNSAFE_OPSET, Precision
from trt_tui.errors import InputError
from trt_tui.files.writing import convert_write_errors, file_transaction, find_content_path, open_atomic_writer
from trt_tui.formatting import counted_noun_text

MAX_INLINE_BYTES = (1 << 31) - (1 << 26)
"""Maximum total size in bytes of the weights in an ONNX file. A protobuf file ends at 2 GiB, and nodes need space too.
"""

CRASHING_RUNTIMES = "1.31 and 1.32"
"""The releases of ONNX Runtime that crashed in the case of `onnxruntime_loading_note`. Other releases were not tested.
"""

NORMALISATION_FUSIONS = ("LayerNormFusionL1", "LayerNormFusionL2")
"""The optimizers of ONNX Runtime that make a LayerNormalization of its operators."""

_SMALL_TENSOR_BYTES = 1024
_ALIGNMENT = 4096


def onnxruntime_loading_note(model: ir.Model) -> str:
    """Returns a note on the session options that ONNX Runtime needs to load a typed network; "" if it needs none.

    There are four cases:

    - From opset `MIN_UNSAFE_OPSET` on, a MatMul of INT8 values followed by the Add of its bias. ONNX Runtime converts
      them into a Reshape and a Gemm.
    - At any opset, a Transpose in FP16 that moves the first axis before a MatMul with a matrix. ONNX Runtime fuses them
      at its highest optimization level and then crashes. FP32 loads.
    - A LayerNorm of single operators behind a Cast between float types. ONNX Runtime fuses the Cast too, into a node of
      two types, which it refuses.
    - A Relu in FP32 before a Q to FP8. From the extended level on, ONNX Runtime removes the Relu, as if FP8 values had
      no sign.
    """
    opset, notes = model.graph.opset_imports.get("", 0), []
    for node in model.graph:
        users = (
            [use.node for use in node.outputs[0].uses()]
            if opset >= MIN_UNSAFE_OPSET and is_quantized_matmul(node)
            else []
        )
        if (
            len(users) == 1
            and users[0].op_type == "Add"
            and any(
                value is not None and (value.shape is None or len(value.shape) == 1)
                for value in users[0].inputs
                if value is not node.outputs[0]
            )
        ):
            notes.append(
                f"At opset {opset} ONNX Runtime may refuse this file under its default options, for a Q that "
                "it adds itself: load it there with the session's entry session.disable_quant_qdq set to 1."
            )
        elif node.op_type == "MatMul" and (
            _is_batch_transposed(*node.inputs) or _is_batch_transposed(*reversed(node.inputs))
        ):
            notes.append(
                f"ONNX Runtime may crash on this file at its highest level (seen: {CRASHING_RUNTIMES}), where "
                "it fuses a Transpose in FP16 with a MatMul: load it there with graph_optimization_level "
                "ORT_ENABLE_EXTENDED."
            )
        elif _is_layer_norm_behind_cast(node):
            notes.append(
                "ONNX Runtime refuses this file under its default options (seen: 1.32), because it fuses a "
                "LayerNorm and the Cast before it into a node of two types: load it there with "
                f"disabled_optimizers={list(NORMALISATION_FUSIONS)}."
            )
        elif _is_relu_before_fp8(node):
            notes.append(
                "ONNX Runtime drops a Relu before a QuantizeLinear to FP8 by default (seen: 1.32), and its "
                "results are wrong: load it there with graph_optimization_level ORT_ENABLE_BASIC."
            )
    return " ".join(dict.fromkeys(notes))


def qdq_loss_debug_note(model: ir.Model) -> str:
    """Returns a note on weights that ONNX Runtime's ``qdq_loss_debug`` cannot compare in a typed network, with the
    remedy.

    Returns "" if the tool can compare all weights, or if nothing is quantized.
    """
    dequantized_values = [node.inputs[0] for node in model.graph if node.op_type == "DequantizeLinear"]
    producers = [value.producer() for value in dequantized_values if value is not None]
    has_quantized_weights = any(
        node is not None and node.op_type == "QuantizeLinear" and _is_stored_constant(node.inputs[0])
        for node in producers
    )
    if has_quantized_weights:
        return (
            "ONNX Runtime's qdq_loss_debug matches the activations of this file by name. It compares weights only "
            "if they are stored as integers, and these are FP32 before a QuantizeLinear: first have ONNX Runtime "
            "write the file anew (optimized_model_filepath, ORT_ENABLE_BASIC)."
        )
    if any(value is not None and value.dtype is ir.DataType.INT4 for value in dequantized_values):
        return "ONNX Runtime's qdq_loss_debug compares no weights of 4 bits, whose scales are by block."
    return ""


def _is_stored_constant(value: ir.Value | None) -> bool:
    """Returns True if a value is a constant, or a Cast of a constant."""
    while value is not None and (node := value.producer()) is not None and node.op_type == "Cast":
        value = node.inputs[0]
    return value is not None and value.const_value is not None


def _is_layer_norm_behind_cast(node: ir.Node) -> bool:
    """Returns True if a node is the Sub of a decomposed LayerNorm with scale and bias, after a Cast between float
    types.
    """
    cast = node.inputs[0].producer() if node.op_type == "Sub" and node.inputs[0] is not None else None
    source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    mean = node.inputs[1].producer() if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if (
        source is None
        or source.dtype is None
        or not source.dtype.is_floating_point()
        or mean is None
        or (mean.op_type != "ReduceMean" or mean.inputs[0] is not node.inputs[0])
    ):
        return False
    readers = [use.node for use in node.outputs[0].uses()]
    scaled = [use.node for reader in readers if reader.op_type == "Div" for use in reader.outputs[0].uses()]
    return any(reader.op_type == "Pow" for reader in readers) and any(
        reader.op_type == "Mul" and any(use.node.op_type == "Add" for use in reader.outputs[0].uses())
        for reader in scaled
    )


def _is_relu_before_fp8(node: ir.Node) -> bool:
    """Returns True if a node is a Relu in FP32 whose result is quantized to FP8."""
    return (
        node.op_type == "Relu"
        and node.outputs[0].dtype in (None, ir.DataType.FLOAT)
        and any(
            use.node.op_type == "QuantizeLinear" and use.node.outputs[0].dtype is ir.DataType.FLOAT8E4M3FN
            for use in node.outputs[0].uses()
        )
    )


def _is_batch_transposed(value: ir.Value | None, other_operand: ir.Value | None) -> bool:
    """Returns True if the FP16 operand of a matrix product has its first axis transposed to one of the last two.

    The other operand must have at most two dimensions.
    """
    qdq_operators = ("DequantizeLinear", "QuantizeLinear")
    while value is not None and (node := value.producer()) is not None and node.op_type in qdq_operators:
        value = node.inputs[0]
    node = value.producer() if value is not None else None
    if value is None or node is None or node.op_type != "Transpose" or value.dtype is not ir.DataType.FLOAT16:
        return False
    order = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else []
    other_axes = [axis for axis in order if axis]
    is_matrix = other_operand is not None and other_operand.shape is not None and len(other_operand.shape) <= 2
    return is_matrix and len(order) > 2 and 0 in order[-2:] and other_axes == sorted(other_axes)


@dataclass(frozen=True)
class WrittenModel:
    """The files of a saved ONNX network.

    Attributes:
        path: The ONNX file.
        data_files: External data files of the network, all in its folder or below.
    """

    path: Path
    data_files: tuple[Path, ...] = ()


def export_typed_network(
    lowered_model: ir.Model, network: Network, path: Path | str, *, max_inline_bytes: int = MAX_INLINE_BYTES
) -> WrittenModel:
    """Writes a lowered network as an ONNX file. Equal networks give equal bytes.

    Weights in external files stay there: an export in the same folder refers to the same files. For an export in
    another folder they are copied beside it. If a file with other content has the name, the copy gets another name.
    Weights in memory go into the ONNX file, or into ``<name>.data`` beside it if they exceed the limit.

    Args:
        lowered_model: The network to save. It is not changed.
        network: The network from which it was lowered.
        max_inline_bytes: Maximum size in bytes of the weights in the ONNX file.

    Raises:
        InputError: The file cannot be written, or it is the file or data of the original network.
    """
    path = Path(path)
    _refuse_overwriting_source_model(path, network)
    # The data file is moved into place before the ONNX file that refers to it.
    with convert_write_errors(path), file_transaction(), contextlib.ExitStack() as files:
        output = files.enter_context(open_atomic_writer(path))
        model, data_file = lowered_model, ""
        if sum(tensor.nbytes for tensor in _iterate_inline_weights(model.graph)) > max_inline_bytes:
            model = lowered_model.clone()
            data_file = _choose_weights_file_name(path, network)
            stream = files.enter_context(open_atomic_writer(path.with_name(data_file)))
            _write_weights(model.graph, stream, data_file)
            stream.flush()
        proto = ir.to_proto(model)
        data = _copy_external_data(proto, data_file, network, path)
        if proto.ByteSize() >= 1 << 31:
            raise InputError(
                f"{path} cannot be written",
                "its nodes without weights are larger than 2 GB",
                "Store the network's constants as initializers and open it again.",
            )
        output.write(proto.SerializeToString(deterministic=True))
        output.flush()
    return WrittenModel(path, data)


def write_onnx_export(context: ExportContext) -> WrittenExport:
    """Writes the typed network of a config. A note counts its groups by precision."""
    network, config = context.network, context.config
    typed_network = lower_from_source_model(network, config, context.ranges)
    written_model = export_typed_network(typed_network.model, network, context.path)
    counts = Counter(
        f"{group.file_precision.label} as in the file"
        if precision is Precision.FILE and group.file_precision is not None
        else precision.label
        for group in network.groups
        for precision in [config.precision_of(group)]
    )
    count_texts = [f"{counted_noun_text(count, 'fused layer')} in {label}" for label, count in sorted(counts.items())]
    runtime_notes = (onnxruntime_loading_note(typed_network.model), qdq_loss_debug_note(typed_network.model))
    return WrittenExport(
        [written_model.path, *written_model.data_files],
        (", ".join(count_texts), *typed_network.notes, *filter(None, runtime_notes)),
    )


def split_off_weights(lowered_model: ir.Model) -> tuple[bytes, dict[str, np.ndarray]]:
    """Splits a lowered network into an ONNX file without weights, as bytes, and its weights as arrays by name.

    The arrays have the type and shape that the weights have in memory or in their files, and are not copied. Small
    weights, strings, quantized values of less than 8 bits, and weights of subgraphs stay in the ONNX file.

    Args:
        lowered_model: The network to split. It is not changed.
    """
    model, weights = lowered_model.clone(), dict[str, np.ndarray]()
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if (
            tensor is None
            or tensor.dtype is ir.DataType.STRING
            or tensor.dtype.bitwidth < 8
            or (tensor.nbytes <= _SMALL_TENSOR_BYTES and not isinstance(tensor, ir.ExternalTensor))
        ):
            continue
        weights[name] = np.ascontiguousarray(tensor.numpy())
        value.const_value = ir.ExternalTensor(
            "", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
        )
    return ir.to_proto(model).SerializeToString(), weights


def _refuse_overwriting_source_model(path: Path, network: Network) -> None:
    for source_file in (network.path, *network.external_files):
        if os.path.realpath(path) == os.path.realpath(source_file) or (
            os.path.exists(path) and source_file.exists() and os.path.samefile(path, source_file)
        ):
            raise InputError(
                f"{path} is the network itself",
                "an export never replaces the file it was made from",
                "Choose another name.",
            )


# -- weights in memory ----------------------------------------------------------------------------------------------


def _iterate_inline_weights(graph: ir.Graph) -> Iterator[ir.TensorProtocol]:
    for value in graph.initializers.values():
        if value.const_value is not None and not isinstance(value.const_value, ir.ExternalTensor):
            yield value.const_value


def _write_weights(graph: ir.Graph, stream: BinaryIO, data_file: str) -> None:
    """Writes the weights in memory to a data file, in graph order, and makes the network refer to the file."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.nbytes <= _SMALL_TENSOR_BYTES:
            continue
        stream.write(bytes(-stream.tell() % _ALIGNMENT))
        offset = stream.tell()
        stream.write(tensor.tobytes())
        value.const_value = ir.ExternalTensor(
            data_file,
            offset,
            stream.tell() - offset,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=value.name or "",
        )


# -- weights in files -----------------------------------------------------------------------------------------------


def _iterate_external_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    graphs = [graph]
    while graphs:
        graph = graphs.pop()
        tensors = list(graph.initializer)
        for node in graph.node:
            for attr in node.attribute:
                tensors.extend((attr.t, *attr.tensors) if attr.HasField("t") else attr.tensors)
                graphs.extend((attr.g, *attr.graphs) if attr.HasField("g") else attr.graphs)
        yield from (tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL)


def _copy_external_data(proto: onnx.ModelProto, data_file: str, network: Network, path: Path) -> tuple[Path, ...]:
    """Copies the external data files beside the export, makes the network refer to the copies, and returns their paths."""
    names: dict[str, str] = {}
    for tensor in _iterate_external_tensors(proto.graph):
        entry = next(entry for entry in tensor.external_data if entry.key == "location")
        if entry.value != data_file and entry.value not in names:
            names[entry.value] = _copy_weights_file(entry.value, network, path)
        entry.value = names.get(entry.value, entry.value)
    return (*(path.parent / name for name in names.values()), *([path.with_name(data_file)] if data_file else []))


def _copy_weights_file(file_location: str, network: Network, path: Path) -> str:
    """Copies a data file of the original network beside the export, unless it is already there; returns its location."""
    folder = network.path.parent
    if os.path.realpath(folder) == os.path.realpath(path.parent):
        return file_location
    source = folder / file_location
    if not source.is_file():
        raise InputError(
            f"external data of {network.name} cannot be read",
            f"{source.name} is missing",
            "Put the data file beside the .onnx file, under the name it was exported with.",
        )
    name, count = source.name, 0
    while (destination := path.with_name(name)) == path or os.path.lexists(find_content_path(destination)):
        if destination != path and _is_copied_file(source, find_content_path(destination)):
            return name
        count += 1
        name = f"{source.stem}_{count}{source.suffix}"
    with open_atomic_writer(destination) as stream, open(source, "rb") as data:
        _copy_stream_content(data, stream)
    return name


def _is_copied_file(source: Path, destination: Path) -> bool:
    """Returns True if a file is not a link and has the same content as another file."""
    return (
        destination.is_file()
        and not destination.is_symlink()
        and destination.stat().st_nlink == 1
        and filecmp.cmp(source, destination, shallow=False)
    )


def _copy_stream_content(source: BinaryIO, destination: BinaryIO) -> None:
    """Copies the content of a file. Blocks are shared if the file system supports it."""
    if hasattr(os, "copy_file_range"):
        try:
            while os.copy_file_range(source.fileno(), destination.fileno(), 1 << 30):
                pass
            return
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            source.seek(0)
            destination.seek(0)
            destination.truncate()
    shutil.copyfileobj(source, destination, 1 << 22)


def _choose_weights_file_name(path: Path, network: Network) -> str:
    """Chooses the file name for the weights of an export: the name that an earlier export used, or an unused one."""
    name, count = f"{path.name}.data", 0
    source_files = {os.path.realpath(file) for file in network.external_files}
    while os.path.lexists(destination := path.with_name(name)) and (
        not path.exists() or destination.is_symlink() or os.path.realpath(destination) in source_files
    ):
        count += 1
        name = f"{path.name}_{count}.data"
    return name
