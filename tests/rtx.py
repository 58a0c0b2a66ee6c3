"""Building networks with TensorRT-RTX, which judges strongly typed ONNX without a GPU."""

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

DYNAMIC_SIZES = (1, 2, 4)
"""Smallest, usual and largest size of a dimension that no test names."""

BUILT = Path(__file__).parent / "listings" / "rtx_built.txt"
"""What was built before: a digest of each network, its floating-point values aside, with the release that built it."""


def layers(model: ir.Model, shapes: Mapping[str, Sequence[int]] | None = None, capability: str = "SM89") -> str:
    """What the builder says of the layers of the engine, a line each: types, tensors, tactic, ONNX layers.

    Raises:
        AssertionError: see `build`.
    """
    listings: list[str] = []
    build(model, shapes, listings, capability)
    return listings[-1]


def build(
    model: ir.Model,
    shapes: Mapping[str, Sequence[int]] | None = None,
    listings: list[str] | None = None,
    capability: str = "SM89",
) -> bytes:
    """The engine of a strongly typed network at the least optimization, by default for compute capability 8.9.

    Args:
        model: The network.
        shapes: The usual shape of inputs by name; other open dimensions range over `DYNAMIC_SIZES`.
        listings: Takes what it says of its layers, if given.

    Raises:
        AssertionError: TensorRT-RTX refuses the network; says what its parser and builder say.
    """
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")

    class Log(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: object, message: str) -> None:
            if severity <= trt.ILogger.ERROR:
                self.errors.append(message)
            if listings is not None and message.startswith("Layers:"):
                listings.append(message)

    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse(ir.to_proto(model).SerializeToString()):
        said = [parser.get_error(index) for index in range(parser.num_errors)]
        raise AssertionError(
            "TensorRT-RTX cannot parse it: " + "\n".join(f"{error.node_name()}: {error.desc()}" for error in said)
        )
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    if listings is not None:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    with contextlib.suppress(AttributeError):
        config.builder_optimization_level = 0
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if -1 not in tuple(tensor.shape):
            continue
        given = (shapes or {}).get(tensor.name)
        usual = tuple(given or (DYNAMIC_SIZES[1] if size < 0 else size for size in tensor.shape))
        open_ = [size < 0 for size in tensor.shape]
        least = tuple(1 if free and not given else size for size, free in zip(usual, open_, strict=True))
        most = tuple(DYNAMIC_SIZES[2] if free and not given else size for size, free in zip(usual, open_, strict=True))
        assert math.prod(usual) > 0
        profile.set_shape(tensor.name, least, usual, most)
    if any(-1 in tuple(network.get_input(i).shape) for i in range(network.num_inputs)):
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    assert engine is not None, "TensorRT-RTX cannot build it: " + "\n".join(log.errors)
    return bytes(engine)


def hold_buildable(model: ir.Model, capability: str = "SM89") -> None:
    """Checks that TensorRT-RTX builds a network: at once if this release has built one of the same structure.

    ``TRT_TUI_GOLDEN=write`` builds every network and adds it to `BUILT`.

    Raises:
        AssertionError: see `build`.
    """
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    line = f"{trt.__version__} {capability} {_digest(ir.to_proto(model))}"
    built = BUILT.read_text().splitlines()
    writes = os.environ.get("TRT_TUI_GOLDEN") == "write"
    if line in built and not writes:
        return
    assert len(build(model, capability=capability)) > 10_000
    if writes:
        BUILT.write_text("".join(f"{one}\n" for one in sorted({*built, line})))


def _digest(model: onnx.ModelProto) -> str:
    """The digest of a network without the values of its floating-point tensors and of long ones."""
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in _tensors(kept.graph):
        if not onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).kind == "i" or math.prod(tensor.dims) > 64:
            for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                tensor.ClearField(field)
    return hashlib.sha256(kept.SerializeToString(deterministic=True)).hexdigest()[:24]


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            elif attribute.HasField("g"):
                yield from _tensors(attribute.g)
