"""Engines: their file, deserializing, the inspector, and execution contexts that compute with ONNX Runtime."""

import ctypes
import json
import time

import numpy as np
import onnx
import onnx_ir as ir

from tests.standins import Bound, Value, make
from tests.standins.cuda import capability
from tests.standins.layers import WORDS, information
from tests.standins.network import NUMPY

_MAGIC = b"standin engine "


def pack(header: dict, model: bytes) -> bytes:
    """An engine's bytes."""
    text = json.dumps(header).encode()
    return _MAGIC + len(text).to_bytes(8, "little") + text + model


def unpack(data: bytes) -> tuple[dict, bytes]:
    """The header and the ONNX model of an engine.

    Raises:
        ValueError: it is no engine of a stand-in.
    """
    start = len(_MAGIC) + 8
    if not data.startswith(_MAGIC):
        raise ValueError("no engine")
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    return json.loads(data[start:end]), data[end:]


class Runtime:
    logger = property(lambda self: self._logger)
    engine_host_code_allowed = Value(False)

    def __init__(self, logger: Bound) -> None:
        from tests.standins.building import fault

        self._logger = logger
        if fault() in ("no gpu", "wrong driver"):
            self._error("CUDA initialization failure with error: 35. Please check your CUDA installation")
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def _error(self, text: str) -> None:
        self._logger.log(self._trt.ILogger.Severity.ERROR, f"IRuntime::deserializeCudaEngine: {text}")

    def deserialize_cuda_engine(self, serialized_engine: object) -> Bound | None:
        data = bytes(serialized_engine)
        try:
            header, model = unpack(data)
        except ValueError:
            return self._error(
                "Error Code 1: Serialization (Serialization assertion plan->header.magicTag == "
                "rt::kPLAN_MAGIC_TAG failed.)"
            )
        if header["release"] != self._release.name:
            return self._error(
                "Error Code 1: Serialization (Serialization assertion stdVersionRead == "
                "kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current Version: "
                f"{self._release.version}, Serialized Engine Version: {header['release']})"
            )
        wanted = [f"{name[2:-1]}.{name[-1]}" for name in header["config"]["compute_capabilities"] if name != "CURRENT"]
        if capability() not in (wanted or [header["device"]]):
            built = (wanted or [header["device"]])[0]
            return self._error(
                "Error Code 6: API Usage Error (The engine plan file is generated on an incompatible "
                f"device, expecting compute {capability()} got compute {built}, please rebuild.)"
            )
        return make(
            self._trt,
            "ICudaEngine",
            _header=header,
            _model=model,
            _data=data,
            _logger=self._logger,
            _tensors={
                one["name"]: {**one, "mode": mode.removesuffix("s").upper()}
                for mode in ("inputs", "outputs")
                for one in header[mode]
            },
        )


class ICudaEngine:
    refittable = Value(False)
    name = property(lambda self: self._header["name"])
    num_io_tensors = property(lambda self: len(self._tensors))
    num_layers = property(lambda self: len(self._header["layers"]))
    num_optimization_profiles = property(lambda self: max(len(self._header["profiles"]), 1))
    device_memory_size = property(lambda self: 4096 * len(self._header["layers"]))
    device_memory_size_v2 = device_memory_size
    profiling_verbosity = property(
        lambda self: getattr(self._trt.ProfilingVerbosity, self._header["config"]["profiling_verbosity"])
    )

    def _tensor(self, name: str) -> dict:
        if name not in self._tensors:
            self._logger.log(
                self._trt.ILogger.Severity.ERROR,
                f"Error Code 3: API Usage Error (Given invalid tensor "
                f"name: {name}. Get valid tensor names with getIOTensorName())",
            )
        return self._tensors.get(name, {"mode": "NONE", "shape": [], "type": "FLOAT"})

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> object:
        return getattr(self._trt.TensorIOMode, self._tensor(name)["mode"])

    def get_tensor_shape(self, name: str) -> Bound:
        return self._trt.Dims(self._tensor(name)["shape"])

    def get_tensor_dtype(self, name: str) -> object:
        return getattr(self._trt.DataType, self._tensor(name)["type"])

    def get_tensor_format(self, name: str, profile_index: int = 0) -> object:
        return self._trt.TensorFormat.LINEAR

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Bound]:
        return [self._trt.Dims(shape) for shape in self._range(name, profile_index)]

    def _range(self, name: str, profile: int) -> list[list[int]]:
        """The smallest, usual and largest shape of an input."""
        profiles = self._header["profiles"]
        return (
            profiles[profile].get(name, [self._tensor(name)["shape"]] * 3)
            if profiles
            else ([self._tensor(name)["shape"]] * 3)
        )

    def is_shape_inference_io(self, name: str) -> bool:
        return False

    def get_aliased_input_tensor(self, name: str) -> None:
        return None

    def create_engine_inspector(self) -> Bound:
        return make(self._trt, "EngineInspector", _engine=self)

    def create_execution_context(self, strategy: object = None) -> Bound | None:
        from tests.standins.building import fault

        if fault() == "out of memory at run":
            return self._logger.log(
                self._trt.ILogger.Severity.ERROR,
                "ICudaEngine::createExecutionContext: Error Code "
                "2: OutOfMemory (Requested size was 17179869184 bytes.)",
            )
        return make(
            self._trt,
            "IExecutionContext",
            _engine=self,
            _logger=self._logger,
            _shapes={},
            _addresses={},
            _allocators={},
        )


class EngineInspector:
    def get_engine_information(self, format: object) -> str:
        engine, header = self._engine, self._engine._header
        told = header["config"]["profiling_verbosity"]
        layers = {"DETAILED": self._layers, "VERBOSE": self._layers}.get(
            told, lambda: [layer["name"] for layer in header["layers"]] if told != "NONE" else []
        )()
        if self._release.major < 11:
            return json.dumps({"Layers": layers, "Bindings": list(engine._tensors)})
        about = []
        for name, one in engine._tensors.items():
            keys = ("MinShape", "OptShape", "MaxShape") if one["mode"] == "INPUT" else ()
            profiles = [
                dict(zip(keys, profile.get(name, [one["shape"]] * 3), strict=False))
                for profile in header["profiles"] or [{}]
            ]
            about.append(
                {
                    "Name": name,
                    "IOMode": one["mode"].title(),
                    "DataType": one["type"].title(),
                    "Dimensions": one["shape"],
                    "Location": "Device",
                    "IsShapeInferenceIO": False,
                    "ProfileInfo": [{**each, "Format": "Row major linear FP32 format (kLINEAR)"} for each in profiles],
                }
            )
        return json.dumps({"Layers": layers, "I/O Tensors": about, "Engine Metadata": {"Multi-Device": "Disabled"}})

    def _layers(self) -> list[dict]:
        header, context = self._engine._header, self.__dict__.get("execution_context")
        shapes = header["shapes"]
        if context is not None:
            shapes = {**shapes, **{name: list(shape) for name, shape in context._shapes.items()}}
        return [information(layer, self._release, shapes) for layer in header["layers"]]


def _session(model: bytes) -> object:
    """ONNX Runtime's session of a model as it is written."""
    import onnxruntime

    from trt_tui.backends.onnxruntime import quantize_in_fp32, truncates_fp16_quantization

    if truncates_fp16_quantization():
        model = ir.to_proto(quantize_in_fp32(ir.from_proto(onnx.ModelProto.FromString(model)))).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 2
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class IExecutionContext:
    enqueue_emits_profile = Value(True)
    engine = property(lambda self: self._engine)

    def _error(self, text: str) -> bool:
        self._logger.log(self._trt.ILogger.Severity.ERROR, f"IExecutionContext::{text}")
        return False

    def set_input_shape(self, name: str, shape: object) -> bool:
        shape = tuple(shape)
        least, _, most = self._engine._range(name, self.__dict__.get("_profile", 0))
        if len(shape) != len(least) or any(
            not (low <= size <= high or low == -1) for low, size, high in zip(least, shape, most, strict=True)
        ):
            return self._error(
                "setInputShape: Error Code 3: API Usage Error (Parameter check failed, condition: engineDims.d[i] == "
                f"dims.d[i]. Static dimension mismatch or profile range exceeded while setting input shape for {name}: "
                f"{list(shape)} is not within {least} to {most}.)"
            )
        self._shapes[name] = shape
        return True

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._profile, self._shapes = profile_index, {}
        return profile_index < self._engine.num_optimization_profiles

    def get_tensor_shape(self, name: str) -> Bound:
        return self._trt.Dims(self._shapes.get(name, self._engine._tensor(name)["shape"]))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = int(memory)
        return name in self._engine._tensors

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def set_output_allocator(self, name: str, output_allocator: Bound) -> bool:
        self._allocators[name] = output_allocator
        return True

    def infer_shapes(self) -> list[str]:
        return [
            name
            for name, one in self._engine._tensors.items()
            if one["mode"] == "INPUT" and -1 in tuple(self.get_tensor_shape(name))
        ]

    all_binding_shapes_specified = property(lambda self: not IExecutionContext.infer_shapes(self))

    def set_all_tensors_debug_state(self, flag: bool) -> bool:
        return True

    def set_debug_listener(self, listener: Bound) -> bool:
        self._listener = listener
        return True

    def _hand_on(self, feeds: dict[str, np.ndarray], stream: int) -> None:
        """Shows a debug listener what engine layers hand on, in memory that is another's right afterwards."""
        from polygraphy import cuda

        kinds = {
            name: kind
            for layer in self._engine._header["layers"]
            for name, kind in layer["outputs"]
            if name not in self._engine._tensors
        }
        model = onnx.ModelProto.FromString(self._engine._model)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in kinds)
        types = {information: name for name, information in WORDS.items()}
        for (name, kind), array in zip(
            kinds.items(), _session(model.SerializeToString()).run(list(kinds), feeds), strict=True
        ):
            array = np.ascontiguousarray(array)
            address = cuda.wrapper().malloc(array.nbytes)
            ctypes.memmove(address, array.ctypes.data, array.nbytes)
            capsule = ctypes.pythonapi.PyCapsule_New
            capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            self._listener.process_debug_tensor(
                address if self._release.major > 10 else capsule(address, None, None),
                self._trt.TensorLocation.DEVICE,
                getattr(self._trt.DataType, types[kind]),
                self._trt.Dims(array.shape),
                name,
                stream,
            )
            ctypes.memset(address, 0xFF, array.nbytes)
            cuda.wrapper().free(address)

    def _session(self) -> object:
        """ONNX Runtime's session of the engine's model; one an engine."""
        if "_session" not in self._engine.__dict__:
            self._engine._session = _session(self._engine._model)
        return self._engine._session

    def execute_async_v3(self, stream_handle: int) -> bool:
        if lacking := self.infer_shapes():
            return self._error(f"enqueueV3: Error Code 7: Internal Error (the shape of input {lacking[0]} is not set)")
        kinds = {"float": np.float32, "double": np.float64, "float16": np.float16, "bool": np.bool_}
        feeds, began = {}, time.perf_counter()
        try:
            session = self._session()
            wanted = {one.name: one.type[7:-1] for one in session.get_inputs()}
            for one in self._engine._header["inputs"]:
                address, shape = self.get_tensor_address(one["name"]), tuple(self.get_tensor_shape(one["name"]))
                if not address:
                    return self._error(f"enqueueV3: Error Code 3: API Usage Error (no address for {one['name']})")
                dtype = np.dtype(NUMPY[one["type"]])
                raw = ctypes.string_at(address, int(np.prod(shape)) * dtype.itemsize)
                kind = kinds.get(wanted[one["name"]], wanted[one["name"]])
                feeds[one["name"]] = np.frombuffer(raw, dtype).reshape(shape).astype(kind)
            found = session.run(None, feeds)
            if self._engine._header["hands_out"] and self.__dict__.get("unfused_tensors_debug_state"):
                self._hand_on(feeds, stream_handle)
        except Exception as error:
            return self._error(f"enqueueV3: the stand-in cannot run this network (ONNX Runtime: {str(error)[:200]})")
        from tests.standins.building import fault

        if fault() == "rows":
            found[0][-1] += 1
        for one, array in zip(self._engine._header["outputs"], found, strict=True):
            self._give(one["name"], np.ascontiguousarray(array.astype(NUMPY[one["type"]])), stream_handle)
        self._milliseconds = (time.perf_counter() - began) * 1e3
        if self.enqueue_emits_profile:
            self.report_to_profiler()
        return True

    def _give(self, name: str, array: np.ndarray, stream: int) -> None:
        self._shapes[name] = array.shape
        address, allocator = self.get_tensor_address(name), self._allocators.get(name)
        if allocator is not None:
            if self._release.major < 10:
                address = allocator.reallocate_output(name, address, array.nbytes, 256)
            else:
                address = allocator.reallocate_output_async(name, address, array.nbytes, 256, stream)
            allocator.notify_shape(name, self._trt.Dims(array.shape))
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def report_to_profiler(self) -> bool:
        profiler = self.__dict__.get("profiler")
        if profiler is None or "_milliseconds" not in self.__dict__:
            return False
        names = [layer["name"] for layer in self._engine._header["layers"]]
        for name in names:
            profiler.report_layer_time(name, self._milliseconds / len(names))
        return True
