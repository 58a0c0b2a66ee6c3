"""From a file on disk to a parsed model whose structure and external data hold."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from trt_tui.core.network.structure import check_structure
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.files.reading import regular

SMALL_TENSOR_BYTES = 1024
"""Tensors up to this size are kept in memory: shapes and axes among them decide what is inferred."""

logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # it prints names from files as they are

_COPY_AGAIN = "It may be truncated or another format: copy or export the network again."


def read_model(path: Path) -> tuple[ir.Model, list[Path]]:
    """Reads an ONNX file; returns the model, and the files that its weights lie in.

    The initializers of the main graph that lie in external files are memory-mapped when somebody reads them; all other
    external tensors (in subgraphs, attributes, local functions) are read here, so that nothing resolves their paths
    anew.

    Raises:
        InputError: the file is missing, empty, not ONNX, truncated or damaged, or its external data are missing, too
            short or outside its folder.
    """
    model = _parsed(path)
    return model, _resolve_external_data(model, path)


def _parsed(path: Path) -> ir.Model:
    if path.is_dir():
        raise InputError(f"{path} is a folder", "an ONNX file is needed", "Name the .onnx file in it.")
    if regular(path).st_size == 0:
        raise InputError(f"{path} is empty", "the file has 0 bytes", "Copy or export the network again.")
    try:
        proto = onnx.load(path, load_external_data=False)
        if not proto.graph.node and not proto.graph.output:
            raise InputError(f"{path} is not an ONNX network", "it holds no graph", _COPY_AGAIN)
        check_structure(proto, path.name)
        model = ir.from_proto(proto)
        _let_go_of_the_file(model)
    except TrtTuiError:
        raise
    except PermissionError as error:
        raise InputError(f"{path} cannot be read", str(error), "Check the file's permissions.") from None
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the wrappers only say where it was met
            cause = cause.__cause__
        raise InputError(f"{path} is not a complete ONNX file", f"{type(cause).__name__}: {cause}",
                         _COPY_AGAIN) from None
    return model


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, the bodies of local functions, and all graphs inside of them."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield graph
        yield from graph.subgraphs()


def _let_go_of_the_file(model: ir.Model) -> None:
    """Takes tensors out of the parsed file: one that stays there copies itself at each reading and keeps all others."""
    for graph in _graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.serde.TensorProtoTensor):
                value.const_value = _in_memory(value.const_value)
        _replace_attributes(graph, ir.serde.TensorProtoTensor)


def _replace_attributes(graph: ir.Graph, kind: type[ir.serde.TensorProtoTensor] | type[ir.ExternalTensor]) -> None:
    """Puts a tensor in memory in place of each tensor of this kind that an attribute holds."""
    for node in graph:
        for name, attr in list(node.attributes.items()):
            if attr.is_ref():
                continue
            if attr.type == ir.AttributeType.TENSOR and isinstance(attr.value, kind):
                node.attributes[name] = ir.AttrTensor(name, _in_memory(attr.value), attr.doc_string)
            elif attr.type == ir.AttributeType.TENSORS and any(isinstance(one, kind) for one in attr.value):
                node.attributes[name] = ir.AttrTensors(name, [_in_memory(one) for one in attr.value], attr.doc_string)


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(tensor.string_data(), shape=ir.Shape(tensor.shape.numpy()), name=tensor.name)
    array = tensor.numpy()
    return ir.Tensor(array.copy() if isinstance(tensor, ir.ExternalTensor) else array, dtype=tensor.dtype,
                     shape=ir.Shape(tensor.shape.numpy()), name=tensor.name)


# -- external data --------------------------------------------------------------------------------------------------


def _resolve_external_data(model: ir.Model, path: Path) -> list[Path]:
    """Binds every external tensor to a file in the network's folder; returns those files."""
    folder = path.absolute().parent
    sizes: dict[str, int] = {}
    files = []
    for graph in _graphs(model):
        for tensor in _tensors(graph):
            if not isinstance(tensor, ir.ExternalTensor):
                continue
            location = os.fspath(tensor.location)
            if location not in sizes:
                files.append(_checked(folder, location, path.name, tensor.name))
                sizes[location] = files[-1].stat().st_size
            end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
            if end > sizes[location]:
                raise _external_error(path.name, f"{location} has {sizes[location]} bytes; tensor {tensor.name} "
                                                 f"needs {end}: it is truncated")
            tensor.base_dir = folder
        for value in graph.initializers.values():
            stored = value.const_value
            if isinstance(stored, ir.ExternalTensor) \
                    and (graph is not model.graph or stored.nbytes <= SMALL_TENSOR_BYTES):
                value.const_value = _in_memory(stored)
        _replace_attributes(graph, ir.ExternalTensor)
    return files


def _tensors(graph: ir.Graph) -> Iterator[ir.TensorProtocol]:
    """The tensors that a graph holds itself, without those of graphs inside of it."""
    yield from (value.const_value for value in graph.initializers.values() if value.const_value is not None)
    for node in graph:
        for attr in node.attributes.values():
            if attr.is_ref():
                continue
            if attr.type == ir.AttributeType.TENSOR:
                yield attr.value
            elif attr.type == ir.AttributeType.TENSORS:
                yield from attr.value


def _checked(folder: Path, location: str, name: str, tensor: str | None) -> Path:
    """The file at a location, which must be one of its own and lie in the network's folder."""
    file = Path(os.path.normpath(folder / location))
    if os.path.isabs(location) or folder not in file.parents:
        raise InputError(f"external data of {name} lies outside its folder", f"tensor {tensor} points to {location}",
                         "Save the network again with its data file beside it.")
    if not file.is_file():
        raise _external_error(name, f"{location} is missing; tensor {tensor} needs it")
    if folder.resolve() not in file.resolve().parents:
        raise InputError(f"external data of {name} lies outside its folder",
                         f"{location} is a link to {file.resolve()}, which ONNX libraries refuse to follow",
                         "Copy the network with its links followed (cp -L) and open the copy.")
    if file.stat().st_nlink > 1:
        raise InputError(f"external data of {name} cannot be read",
                         f"{location} has several hard links, which ONNX libraries refuse to read",
                         "Copy the network and its data file, and open the copy.")
    return file


def _external_error(name: str, cause: str) -> InputError:
    return InputError(f"external data of {name} cannot be read", cause,
                      "Put the data file beside the .onnx file, under the name it was exported with.")
