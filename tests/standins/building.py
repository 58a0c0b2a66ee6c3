"""Building: loggers, builder, its configuration, profiles and timing caches."""

import copy
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import onnx

from tests.standins import Bound, Value, make
from tests.standins import flags as flags_of
from tests.standins.cuda import capability
from tests.standins.engine import pack
from tests.standins.layers import Fusion
from tests.standins.network import WEIGHTED
from tests.standins.wrong import plant_wrong_kernels

WORKSPACE_BYTES = 64 << 30
_PRODUCTS = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
_CACHE = b"standin timing cache "


def fault(model: onnx.ModelProto | None = None) -> str:
    """What shall go wrong: STANDIN_FAULT, else the network's metadata property ``standin``.

    ``no gpu``, ``wrong driver`` (a GPU, and TensorRT does not start), ``segfault``, ``out of memory`` (of the build),
    ``out of memory at run``, ``rows`` (the last sample of a batch comes out otherwise), and ``fail: NODE`` (no
    implementation for the engine layer of that node). Several with ``;`` between: ``no int8: NODE`` (the same where
    that computes in INT8), ``no order: NODE`` (the same where the node is told a precision that must be obeyed),
    ``no obeying`` and ``no constraints`` (no engine that names no layer, where precisions must be obeyed, or
    preferred too). Of wrong kernels (`tests.standins.wrong`): ``wrong: NODE``, ``nan: NODE``, ``wrong row: NODE``,
    ``flaky: NODE`` and ``other tactic: NODE``.
    """
    properties = {entry.key: entry.value for entry in model.metadata_props} if model is not None else {}
    return os.environ.get("STANDIN_FAULT") or properties.get("standin", "")


class Logger:
    min_severity = Value()

    def __init__(self, min_severity: object = None) -> None:
        self.min_severity = min_severity or self._trt.ILogger.Severity.WARNING

    def log(self, severity: object, msg: str) -> None:
        if severity <= self.min_severity:
            print(f"[TRT] [{severity.name[0]}] {msg}", file=sys.stderr)


class IHostMemory:
    nbytes = property(lambda self: bytes.__len__(self))
    dtype = property(lambda self: self._trt.int8)

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("_") and name not in ("nbytes", "dtype"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return object.__getattribute__(self, name)

    def __len__(self) -> int:
        raise TypeError("object of type 'IHostMemory' has no len()")

    def __bool__(self) -> bool:
        return True


class IOptimizationProfile:
    def set_shape(self, input: str, min: object, opt: object, max: object) -> None:
        self._shapes[input] = [tuple(min), tuple(opt), tuple(max)]

    def __bool__(self) -> bool:
        return all(
            len({*map(len, three)}) == 1 and all(a <= b <= c for a, b, c in zip(*three, strict=True))
            for three in self._shapes.values()
        )


class ITimingCache:
    def serialize(self) -> Bound:
        return make(self._trt, "IHostMemory", _CACHE + json.dumps([self._release.name, self._entries]).encode())

    def combine(self, input_cache: Bound, ignore_mismatch: bool) -> bool:
        self._entries.update(input_cache._entries)
        return True


class IBuilderConfig:
    DLA_core = Value(-1)
    max_aux_streams = Value(-1)
    num_compute_capabilities = Value(0)
    hardware_compatibility_level = Value()
    builder_optimization_level = property(
        lambda self: self._level, lambda self, level: setattr(self, "_level", min(max(int(level), 0), 5))
    )
    flags = property(lambda self: self._flags, lambda self, mask: setattr(self, "_flags", int(mask)))
    num_optimization_profiles = property(lambda self: len(self._profiles))

    set_flag, clear_flag, get_flag = flags_of("_flags", "BuilderFlag")
    set_quantization_flag, clear_quantization_flag, get_quantization_flag = flags_of(
        "_quantization", "QuantizationFlag"
    )

    def get_preview_feature(self, feature: object) -> bool:
        return False

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        self._tactics = int(tactic_sources)
        return True

    def get_tactic_sources(self) -> int:
        return self._tactics

    def get_memory_pool_limit(self, pool: object) -> int:
        return self._pools.get(pool.name, WORKSPACE_BYTES)

    def set_memory_pool_limit(self, pool: object, pool_size: int) -> None:
        self._pools[pool.name] = pool_size

    def add_optimization_profile(self, profile: Bound) -> int:
        if not profile:
            return -1
        self._profiles.append(copy.deepcopy(profile._shapes))
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> Bound:
        data, entries = bytes(serialized_timing_cache), {}
        if data.startswith(_CACHE):
            release, entries = json.loads(data[len(_CACHE) :])
            entries = entries if release == self._release.name else None
        if entries is None or data and not data.startswith(_CACHE):
            self._logger.log(
                self._trt.ILogger.Severity.WARNING,
                "Failed to deserialize timing cache. Returning an empty timing cache.",
            )
        return make(self._trt, "ITimingCache", _entries=entries or {})

    def set_timing_cache(self, cache: Bound, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return True

    def get_timing_cache(self) -> Bound | None:
        return self._cache

    def set_compute_capability(self, compute_capability: object, index: int) -> bool:
        self._capabilities[index] = compute_capability.name
        return True


class _Stopped(Exception):
    pass


class Builder:
    logger = property(lambda self: self._logger)
    platform_has_fast_fp16 = Value(True)
    platform_has_fast_int8 = Value(True)
    platform_has_tf32 = Value(True)
    num_DLA_cores = Value(0)
    max_threads = Value(1)

    def __init__(self, logger: Bound) -> None:
        self._logger = logger
        if fault() in ("no gpu", "wrong driver") and not hasattr(self._trt, "ComputeCapability"):
            self._error("CUDA initialization failure with error: 35. Please check your CUDA installation")
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def _error(self, text: str) -> None:
        self._logger.log(self._trt.ILogger.Severity.ERROR, text)

    def create_network(self, flags: int = 0) -> Bound | None:
        known = {int(flag): name for name, flag in self._trt.NetworkDefinitionCreationFlag.__members__.items()}
        if int(flags) >> (max(known) + 1):
            self._error(
                "IBuilder::createNetworkV2: Error Code 3: API Usage Error (Parameter check failed, condition: "
                "flagSet.toU32() < (1U << EnumMax<NetworkDefinitionCreationFlag>()).)"
            )
            return None
        named = [name for number, name in known.items() if int(flags) >> number & 1]
        return make(
            self._trt,
            "INetworkDefinition",
            _builder=self,
            _flags=int(flags),
            _named=named,
            _layers=[],
            _inputs=[],
            _outputs=[],
            has_implicit_batch_dimension=self._release.major < 10 and "EXPLICIT_BATCH" not in named,
        )

    def create_builder_config(self) -> Bound:
        trt = self._trt
        return make(
            trt,
            "IBuilderConfig",
            _logger=self._logger,
            _flags=1 << int(trt.BuilderFlag.TF32),
            _quantization=0,
            _profiles=[],
            _cache=None,
            _capabilities={},
            _level=3,
            _pools={},
            _tactics=sum(1 << int(one) for one in trt.TacticSource.__members__.values()),
            profiling_verbosity=trt.ProfilingVerbosity.LAYER_NAMES_ONLY,
            engine_capability=trt.EngineCapability.STANDARD,
            default_device_type=trt.DeviceType.GPU,
        )

    def create_optimization_profile(self) -> Bound:
        return make(self._trt, "IOptimizationProfile", _shapes={})

    def build_serialized_network(self, network: Bound, config: Bound) -> Bound | None:
        result: list[bytes] = []

        def build() -> None:
            try:
                result.append(self._build(network, config))
            except _Stopped as stopped:
                self._error(f"IBuilder::buildSerializedNetwork: {stopped}")

        thread = threading.Thread(target=build, name="builder")
        thread.start()
        thread.join()
        return make(self._trt, "IHostMemory", result[0]) if result else None

    def _build(self, network: Bound, config: Bound) -> bytes:
        says, model = self._trt.ILogger.Severity, network._model
        told = _Told(
            network, config, [name for name, flag in self._trt.BuilderFlag.__members__.items() if config.get_flag(flag)]
        )
        told.check()
        model = copy.deepcopy(model)
        del model.graph.output[:]
        for tensor in network._outputs:
            kind, shape = network._values[tensor.name]
            model.graph.output.append(
                onnx.helper.make_tensor_value_info(tensor.name, kind, [None if size < 0 else size for size in shape])
            )
        layers = Fusion(network, told.precision, told.base).run()
        plant_wrong_kernels(model, layers, fault(model), self._release.major)
        kept = config._cache is not None and self._release.module != "tensorrt_rtx"
        cache = config._cache._entries if kept else {}
        missed = []
        step_seconds = float(os.environ.get("STANDIN_STEP_SECONDS", "0"))

        def time_layer(number: int) -> None:
            layer = layers[number]
            self._logger.log(says.VERBOSE, f"=============== Computing costs for {layer['name']}")
            key = f"{layer['name']}:{layer['precision']}:{config.builder_optimization_level}"
            if key not in cache:
                missed.append(key)
                cache[key] = 1.0
                time.sleep(step_seconds)
            wanted = fault(model)
            if wanted == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            if wanted == "out of memory":
                raise _Stopped(
                    "Error Code 2: OutOfMemory (Requested amount of GPU memory (17179869184 bytes) could "
                    "not be allocated. There may not be enough free memory for allocation to succeed.)"
                )
            if any(told.refuses(kind, layer) for kind in wanted.split(";")):
                raise _Stopped(
                    f"Error Code 10: Internal Error (Could not find any implementation for node {layer['name']}.)"
                )
            if wanted in told.unnamed:
                raise _Stopped("Error Code 2: Internal Error (Assertion engine failed. )")

        def from_another_thread() -> None:
            failed: list[Exception] = []

            def run() -> None:
                try:
                    self._phase(config, "Timing graph nodes", "Computing profile costs", len(layers), time_layer)
                except _Stopped as stopped:
                    failed.append(stopped)

            thread = threading.Thread(target=run, name="timing")
            thread.start()
            thread.join()
            if failed:
                raise failed[0]

        self._logger.log(says.INFO, f"{'Local' if config._cache is None else 'Global'} timing cache in use.")
        began = time.perf_counter()
        stages: list[Callable[[], None]] = [
            lambda: self._phase(config, "Cloning network graph", "Building engine", network.num_layers),
            lambda: self._phase(config, "Optimizing graph", "Building engine", 5),
            lambda: self._phase(
                config, "Computing profile costs", "Building engine", 1, lambda number: from_another_thread()
            ),
            lambda: self._phase(config, "Serializing engine", "Building engine", 1),
        ]
        self._phase(config, "Building engine", None, len(stages), lambda number: stages[number]())
        self._logger.log(says.INFO, f"Engine generation completed in {time.perf_counter() - began:.3f} seconds.")

        def values(tensor: Bound) -> dict:
            return {"name": tensor.name, "type": tensor.dtype.name, "shape": list(tensor._shape)}

        return pack(
            {
                "release": self._release.name,
                "name": network.name,
                "device": capability(),
                "inputs": [values(tensor) for tensor in network._inputs],
                "profiles": told.profiles,
                "layers": layers,
                "hands_out": network.__dict__.get("_hands_out", False),
                "outputs": [values(tensor) for tensor in network._outputs],
                "shapes": {name: list(shape) for name, (_, shape) in network._values.items()},
                "config": {
                    "flags": told.flags,
                    "network_flags": network._named,
                    "builder_optimization_level": config.builder_optimization_level,
                    "profiling_verbosity": config.profiling_verbosity.name,
                    "tactic_sources": [
                        name
                        for name, one in self._trt.TacticSource.__members__.items()
                        if config._tactics >> int(one) & 1
                    ],
                    "compute_capabilities": list(config._capabilities.values()),
                    "pools": dict(config._pools),
                    "hardware": getattr(config.__dict__.get("hardware_compatibility_level"), "name", "NONE"),
                    "calibrator": config.__dict__.get("int8_calibrator") is not None,
                    "timing_cache": {"found": len(layers) - len(missed), "missed": len(missed)},
                    **told.asked,
                },
            },
            model.SerializeToString(),
        )

    def _phase(
        self,
        config: Bound,
        name: str,
        parent: str | None,
        steps: int,
        body: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Does the steps of a phase, and tells the progress monitor of each."""
        monitor = config.__dict__.get("progress_monitor")
        if monitor is not None:
            monitor.phase_start(name, parent, steps)
        try:
            for number in range(steps):
                body(number)
                if monitor is not None and not monitor.step_complete(name, number):
                    raise _Stopped("the build was cancelled by the progress monitor")
        finally:
            if monitor is not None:
                monitor.phase_finish(name)


class _Told:
    """What a build was told, checked, and the precision it gives each node."""

    def __init__(self, network: Bound, config: Bound, flags: list[str]) -> None:
        self.network, self.config, self.flags = network, config, flags
        self.set = {
            layer._node or layer.name: layer.precision.name
            for layer in network._layers
            if layer.__dict__.get("_precision") is not None
        }
        kinds = {
            f"{layer.name}:{index}": kind.name
            for layer in network._layers
            for index, kind in layer.__dict__.get("_types", {}).items()
        }
        tensors = {tensor.name: tensor for layer in network._layers for tensor in (*layer._inputs, *layer._outputs)}
        self.ranges = {
            name: tensor.__dict__["_range"] for name, tensor in tensors.items() if tensor.__dict__.get("_range")
        }
        self.asked = {"layer_precisions": self.set, "output_types": kinds, "dynamic_ranges": self.ranges}
        self.base = "Half" if "FP16" in flags else "BFloat16" if "BF16" in flags else "Float"
        self.layers: dict[str, list[Bound]] = {}
        for layer in network._layers:
            self.layers.setdefault(layer._node, []).append(layer)
        self.dequantized = {
            name for node in network._model.graph.node if node.op_type == "DequantizeLinear" for name in node.output
        }
        self.profiles = config._profiles

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The faults that these flags bring about without a layer's name."""
        if "OBEY_PRECISION_CONSTRAINTS" in self.flags:
            return ("no obeying", "no constraints")
        return ("no constraints",) if "PREFER_PRECISION_CONSTRAINTS" in self.flags else ()

    def refuses(self, fault: str, layer: dict) -> bool:
        """Whether a fault is of one engine layer."""
        kind, _, node = fault.strip().partition(": ")
        if node not in layer["nodes"]:
            return False
        ordered = "OBEY_PRECISION_CONSTRAINTS" in self.flags and node in self.set
        return kind == "fail" or kind == "no int8" and layer["precision"] == "Int8" or kind == "no order" and ordered

    def check(self) -> None:
        network, release = self.network, self.network._release
        usage = "Error Code 4: API Usage Error"
        for tensor in network._inputs:
            if -1 in tensor._shape:
                if not self.profiles:
                    raise _Stopped(
                        f"{usage} (Network has dynamic or shape inputs, but no optimization profile has been defined.)"
                    )
                if any(tensor.name not in profile for profile in self.profiles):
                    raise _Stopped(f"{usage} ({tensor.name}: dynamic input is missing dimensions in profile 0.)")
        if network._strong and {"FP16", "BF16", "INT8"} & set(self.flags):
            raise _Stopped("Error Code 3: API Usage Error (A strongly typed network takes no precision flags.)")
        needed = {"INT8": "Int8", "HALF": "Half", "BF16": "BFloat16"}
        flag_of = {"HALF": "FP16"}
        if not network._strong:
            wanted = {*self.set.values(), *self.asked["output_types"].values()}
            if any(node.op_type == "QuantizeLinear" for node in network._model.graph.node):
                wanted.add("INT8")
            for kind in sorted(wanted & set(needed)):
                if flag_of.get(kind, kind) not in self.flags:
                    raise _Stopped(
                        f"{usage} ({needed[kind]} precision has been set for a layer or layer output, but "
                        f"{flag_of.get(kind, kind).lower()} is not configured in the builder)"
                    )
        held = {one.name: one for one in network._model.graph.initializer}
        for node in network._model.graph.node:
            if release.major < 10 and node.op_type == "DequantizeLinear" and node.input[0] in held:
                raise _Stopped(
                    f"Error Code 2: Internal Error (Assertion failed: {node.name}: INT8 weights have to be "
                    "quantized from FP32 by a QuantizeLinear)"
                )

    def precision(self, node: onnx.NodeProto) -> str:
        names = {"FLOAT": "Float", "HALF": "Half", "BF16": "BFloat16", "INT8": "Int8"}
        if node.op_type in WEIGHTED and all(name in self.dequantized for name in node.input[:2]):
            return "Int8"
        if self.network._strong:
            kind = self.network._values.get(node.output[0], (1, ()))[0]
            return {10: "Half", 16: "BFloat16"}.get(kind, "Float")
        constrained = {"OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS"} & set(self.flags)
        ranged = node.op_type in WEIGHTED and all(
            tensor.name in self.ranges
            for layer in self.layers[node.name]
            if layer.type.name in _PRODUCTS
            for tensor in (*layer._inputs, *layer._outputs)
        )
        if constrained and node.name in self.set:
            if self.set[node.name] == "INT8" and not ranged:
                raise _Stopped(
                    f"Error Code 10: Internal Error (Could not find any implementation for node {node.name}.)"
                )
            return names[self.set[node.name]]
        return "Int8" if "INT8" in self.flags and ranged else self.base
