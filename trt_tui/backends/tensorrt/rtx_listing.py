"""The list of engine layers that TensorRT-RTX prints for a build without a GPU. The engine itself is discarded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.backends.tensorrt.build import allow_attention_decomposition, make_progress_monitor
from trt_tui.backends.tensorrt.failures import translate_build_error, translate_parser_errors
from trt_tui.backends.tensorrt.log import PrintedMessages, TensorRTLog
from trt_tui.backends.tensorrt.package import import_tensorrt, list_compute_capabilities
from trt_tui.backends.tensorrt.plugins import load_plugins
from trt_tui.core.engines.layer_listing import LISTING_HEADING
from trt_tui.core.runner import Profile
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError

_BUILD_THREADS = min(os.cpu_count() or 1, 4)
"""The number of threads of a build.

The engine does not depend on this number. Other measurements on this machine wait for the build.
"""


@dataclass(frozen=True)
class RtxEngineLayerLister:
    """The TensorRT-RTX package, which lists the engine layers of a network without a GPU.

    Attributes:
        release: The version of the package.
        compute_capabilities: The compute capabilities that the package builds for, as (major, minor).
    """

    trt: Any
    release: str
    compute_capabilities: tuple[tuple[int, int], ...]

    @classmethod
    def load_package(cls) -> RtxEngineLayerLister:
        """Imports the TensorRT-RTX package.

        Raises:
            BackendUnavailableError: The package is not installed, does not load, or has an unsupported release.
        """
        trt = import_tensorrt("tensorrt-rtx")
        if not hasattr(trt.OnnxParser, "load_initializer"):
            raise BackendUnavailableError(f"TensorRT-RTX {trt.__version__} is too old for a preview",
                                          "it cannot read weights from memory", "pip install -U 'trt-tui[rtx]'")
        return cls(trt, str(trt.__version__), list_compute_capabilities(trt))

    def load_plugins(self, paths: Sequence[str]) -> None:
        load_plugins(self.trt, f"tensorrt-rtx {self.release}", paths)

    def list_engine_layers(self, model: bytes, weights: Mapping[str, np.ndarray], base_path: Path, profile: Profile,
                           tf32: bool, compute_capability: tuple[int, int],
                           should_continue: Callable[[], bool]) -> tuple[str, PrintedMessages]:
        """Builds an engine of a strongly typed network without a GPU. Returns the list of its layers, and the printed
        messages.

        Args:
            model: The bytes of an ONNX file without its weights.
            weights: The weights, by name. The parser and the builder read them in place.
            base_path: A path in the folder of the external files that the model refers to.
            should_continue: A function that is called between two steps. The build ends if it returns False.

        Raises:
            NetworkParseError: The parser refuses the network. The message names the node.
            BuildError: The build failed.
            CancelledError: ``should_continue`` returned False.
            InputError: The release does not list engine layers.
        """
        trt, log = self.trt, TensorRTLog()
        logger = log.get_tensorrt_logger(trt)
        with log.collect_messages(None) as messages:
            builder = trt.Builder(logger)
            builder.max_threads = _BUILD_THREADS
            network = builder.create_network(0)
            parser = trt.OnnxParser(network, logger)
            trt.init_libnvinfer_plugins(logger, "")
            is_loaded = parser.load_model_proto(model, str(base_path)) and all(
                parser.load_initializer(name, array.ctypes.data, array.nbytes) for name, array in weights.items())
            if not is_loaded or not parser.parse_model_proto() or parser.num_errors:
                errors = [parser.get_error(index) for index in range(parser.num_errors)]
                raise translate_parser_errors("tensorrt-rtx", self.release, errors)
            allow_attention_decomposition(trt, network)
            config = builder.create_builder_config()
            config.num_compute_capabilities = 1
            config.set_compute_capability(
                getattr(trt.ComputeCapability, f"SM{compute_capability[0]}{compute_capability[1]}"), 0)
            config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
            (config.set_flag if tf32 else config.clear_flag)(trt.BuilderFlag.TF32)
            if profile:
                optimization_profile = builder.create_optimization_profile()
                for name, (min_shape, opt_shape, max_shape) in profile.items():
                    optimization_profile.set_shape(name, min_shape, opt_shape, max_shape)
                config.add_optimization_profile(optimization_profile)
            monitor = make_progress_monitor(trt, lambda *_: should_continue())
            config.progress_monitor = monitor
            built = builder.build_serialized_network(network, config)
            if monitor.stopped:
                raise CancelledError("stopped")
            if built is None:
                raise translate_build_error(messages, tuple(log.details), RuntimeError("the builder gives no reason"))
        if not log.listings:
            raise InputError("TensorRT-RTX does not list the layers of the engine",
                             f"release {self.release} prints no message that begins with {LISTING_HEADING}",
                             "Another release may print it; a build on a GPU reports its layers through the inspector.")
        return log.listings[-1], [message for message in messages if message[0] != "info"]
