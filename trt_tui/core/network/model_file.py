"""The reading of an ONNX file from disk, with checks of its structure and its external data."""

import logging
import os
from pathlib import Path

import onnx
import onnx_ir as ir

from trt_tui.core.network.operators import refuse_quantized_operators
from trt_tui.core.network.structure_check import check_structure
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.files.reading import check_regular_file

SMALL_TENSOR_BYTES = 1024
"""The maximum size of external tensors that are copied into memory; shapes and axes among them affect shape inference.
"""

logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # onnx_ir logs names from files unescaped

_COPY_NEXT_STEP = "It may be truncated or another format: copy or export the network again."


def read_model(path: Path) -> tuple[ir.Model, list[Path]]:
    """Reads an ONNX file. Returns the model and the paths of the external files with its weights.

    Initializers of the main graph in external files are memory-mapped at the first access. All other external tensors
    (in subgraphs, attributes, local functions) are read here, so that no other code resolves their paths.

    Raises:
        InputError: the file is missing, empty, not ONNX, truncated or damaged, or its external data are missing, too
            short or outside its folder; or it has operators on quantized values other than Q and DQ.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder", "an ONNX file is needed", "Name the .onnx file in it.")
    if check_regular_file(path).st_size == 0:
        raise InputError(f"{path} is empty", "the file has 0 bytes", "Copy or export the network again.")
    try:
        proto = onnx.load(path, load_external_data=False)
        if not proto.graph.node and not proto.graph.output:
            raise InputError(f"{path} is not an ONNX network", "it holds no graph", _COPY_NEXT_STEP)
        check_structure(proto, path.name)
        model = ir.from_proto(proto)
        refuse_quantized_operators(model, path.name)
        return model, _read_tensors(model, path)
    except TrtTuiError:
        raise
    except PermissionError as error:
        raise InputError(f"{path} cannot be read", str(error), "Check the file's permissions.") from None
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the wrapping exceptions only add the position in the file
            cause = cause.__cause__
        raise InputError(
            f"{path} is not a complete ONNX file", f"{type(cause).__name__}: {cause}", _COPY_NEXT_STEP
        ) from None


def _copy_to_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    array = tensor.numpy()
    return ir.Tensor(
        array.copy() if isinstance(tensor, ir.ExternalTensor) else array,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
    )


def _read_tensors(model: ir.Model, path: Path) -> list[Path]:
    """Copies tensors out of the parsed protobuf message, connects external tensors to their files in the folder of the
    network, and returns these files.

    A tensor in the message is copied at each access and keeps the whole message in memory.
    """
    folder = path.absolute().parent
    sizes: dict[str, int] = {}
    files = []

    def read_tensor(tensor: ir.TensorProtocol, *, stays_on_disk: bool = False) -> ir.TensorProtocol:
        if isinstance(tensor, ir.serde.TensorProtoTensor):
            return _copy_to_memory(tensor)
        if not isinstance(tensor, ir.ExternalTensor):
            return tensor
        location = os.fspath(tensor.location)
        if location not in sizes:
            files.append(_find_external_data_file(folder, location, path.name, tensor.name))
            sizes[location] = files[-1].stat().st_size
        end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
        if end > sizes[location]:
            raise _external_data_error(
                path.name, f"{location} has {sizes[location]} bytes; tensor {tensor.name} needs {end}: it is truncated"
            )
        tensor.base_dir = folder
        return tensor if stays_on_disk and tensor.nbytes > SMALL_TENSOR_BYTES else _copy_to_memory(tensor)

    for outer_graph in (model.graph, *(function.graph for function in model.functions.values())):
        for graph in (outer_graph, *outer_graph.subgraphs()):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    value.const_value = read_tensor(value.const_value, stays_on_disk=graph is model.graph)
            for node in graph:
                for name, attr in list(node.attributes.items()):
                    if attr.type == ir.AttributeType.TENSOR and not attr.is_ref():
                        node.attributes[name] = ir.AttrTensor(name, read_tensor(attr.value), attr.doc_string)
                    elif attr.type == ir.AttributeType.TENSORS and not attr.is_ref():
                        node.attributes[name] = ir.AttrTensors(
                            name, list(map(read_tensor, attr.value)), attr.doc_string
                        )
    return files


def _find_external_data_file(folder: Path, location: str, file_name: str, tensor_name: str | None) -> Path:
    """Returns the path of an external data file after safety checks.

    The file must be in the folder of the network, also after symbolic links are resolved, and must have a single hard
    link.
    """
    data_path = Path(os.path.normpath(folder / location))
    if os.path.isabs(location) or folder not in data_path.parents:
        raise InputError(
            f"external data of {file_name} is outside its folder",
            f"tensor {tensor_name} points to {location}",
            "Save the network again with its data file beside it.",
        )
    if not data_path.is_file():
        raise _external_data_error(file_name, f"{location} is missing; tensor {tensor_name} needs it")
    if folder.resolve() not in data_path.resolve().parents:
        raise InputError(
            f"external data of {file_name} is outside its folder",
            f"{location} is a link to {data_path.resolve()}, which ONNX libraries refuse to follow",
            "Copy the network with its links followed (cp -L) and open the copy.",
        )
    if data_path.stat().st_nlink > 1:
        raise InputError(
            f"external data of {file_name} cannot be read",
            f"{location} has several hard links, which ONNX libraries refuse to read",
            "Copy the network and its data file, and open the copy.",
        )
    return data_path


def _external_data_error(file_name: str, cause: str) -> InputError:
    return InputError(
        f"external data of {file_name} cannot be read",
        cause,
        "Put the data file beside the .onnx file, under the name it was exported with.",
    )
