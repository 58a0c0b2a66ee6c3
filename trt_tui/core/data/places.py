"""Which files a command reads, so that nothing it writes takes the place of one of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trt_tui.core.data.userscript import split_spec
from trt_tui.errors import InputError

if TYPE_CHECKING:
    import onnx

_NEVER_WEIGHTS = (".json", ".md")


def files_read(model: str, *specs: str | None) -> list[Path]:
    """The files behind a network and what else is read: files, folders of data, ``FILE.py:FUNCTION``; without the
    network's external data, see `refuse_over`."""
    found = [Path(model)]
    for spec in filter(None, specs):
        script = split_spec(spec)
        path = script[0] if script is not None and not Path(spec).exists() else Path(spec)
        found += _inside(path) if path.is_dir() else [path]
    return [path for path in found if path.is_file()]


def _inside(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix in (".npz", ".json")]
    except OSError:
        return []


def refuse_over(written: Iterable[Path | str], read: Iterable[Path], model: str | None = None) -> None:
    """Refuses to write over what is read.

    Args:
        written: Places that are to be written; a network may be written with its weights beside it.
        read: Files that are read, under whatever names.
        model: An ONNX file whose external data are read too.

    Raises:
        InputError: one of the places is one of the files.
    """
    places = [Path(path) for path in written]
    places += [path.with_name(f"{path.name}.data") for path in places if path.suffix.lower() == ".onnx"]
    there = [path for path in places if os.path.isfile(path)]
    for path, other in ((path, other) for path in there for other in read):
        if _same(path, other):
            raise _is_read(path, other)
    if model is None or all(path.suffix in _NEVER_WEIGHTS for path in there):
        return
    for path, other in ((path, other) for other in _external_files(model) for path in there):
        if _same(path, other):
            raise _is_read(path, other)


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _is_read(path: Path, other: Path) -> InputError:
    return InputError(f"{path} is read from", f"writing it would lose {other}", "Choose another name.")


def _external_files(model: str) -> Iterator[Path]:
    """The data files of a network; none where it cannot be read: opening says what is wrong with it."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    try:
        if not os.path.isfile(model):
            return
        proto = onnx.load(model, load_external_data=False)
    except Exception:
        return
    locations = set()
    for graph in _graphs(proto):
        tensors = [*graph.initializer, *(tensor for node in graph.node for attribute in node.attribute
                                         for tensor in (attribute.t, *attribute.tensors))]
        locations |= {entry.value for tensor in tensors if uses_external_data(tensor)
                      for entry in tensor.external_data if entry.key == "location"}
    for location in sorted(locations):
        yield Path(model).parent / location


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Every graph of a model; functions have nodes as graphs do, and no initializers."""
    graphs = [proto.graph]
    while graphs:
        graph = graphs.pop()
        yield graph
        graphs += [inner for node in graph.node for attribute in node.attribute
                   for inner in (attribute.g, *attribute.graphs) if inner.node or inner.initializer]
