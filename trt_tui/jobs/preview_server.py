"""The preview process, which builds with TensorRT-RTX at low priority to list the engine layers of configs.

The process opens the network itself, so that neither lowering nor building delays the process that measures. The build
of a cancelled request ends at its next step.
"""

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from trt_tui.backends.registry import get_simulation_backend
from trt_tui.backends.tensorrt import (
    build_and_list_engine_layers,
    import_preview_builder,
    list_compute_capabilities,
    load_plugins,
)
from trt_tui.core.engines.fallback_ladder import (
    BuildError,
    NetworkParseError,
    find_groups_in_message,
    join_lines,
    list_known_warnings,
)
from trt_tui.core.engines.group_implementations import (
    Preview,
    PreviewNetwork,
    PreviewRefusal,
    PreviewRequest,
    build_preview,
    choose_compute_capability,
)
from trt_tui.core.engines.inspector import read_layer_listing
from trt_tui.core.exporters.onnx import split_off_weights
from trt_tui.core.lowering.network_rewrite import find_min_compute_capability, refuse_unsupported_precisions
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import ASSIGNABLE
from trt_tui.errors import BackendUnavailableError, CancelledError, TrtTuiError, convert_memory_error, exception_text
from trt_tui.jobs.child_exit import connect_to_parent


class PreviewServer:
    """The server that answers preview requests in their order.

    Attributes:
        is_wanted: True if a job waits for the answer to the request.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self._trt: Any = None
        self._open_network: tuple[PreviewNetwork, Network] | None = None
        self._plugin_errors: dict[str, TrtTuiError | None] = {}

    def make_preview(self, request: PreviewRequest) -> Preview:
        """Returns the preview for a request, or a preview with the reason why there is none."""
        try:
            trt = self._trt = self._trt or import_preview_builder()
        except BackendUnavailableError as error:
            return Preview(refusal=PreviewRefusal(error.title, error.cause, error.next_step, is_rtx_missing=True))
        compute_capability = choose_compute_capability(
            list_compute_capabilities(trt),
            request.gpu_capability,
            request.requested_capability,
            find_min_compute_capability(request.config),
        )
        base_preview = Preview(str(trt.__version__), compute_capability, compute_capability == request.gpu_capability)
        network: Network | None = None
        try:
            network = self._open_preview_network(request.network)
            return self._build_preview(trt, network, request, base_preview)
        except TrtTuiError as error:
            return _make_refusal_preview(base_preview, error, network)
        except Exception as error:  # a failed preview must not end the process
            refusal = (
                convert_memory_error(error)
                if isinstance(error, MemoryError)
                else TrtTuiError(f"unexpected {type(error).__name__}", exception_text(error))
            )
            return _make_refusal_preview(base_preview, refusal, network)

    def _open_preview_network(self, preview_network: PreviewNetwork) -> Network:
        if self._open_network is None or self._open_network[0] != preview_network:
            self._open_network = None
            network = open_network(
                preview_network.path,
                partial(get_simulation_backend, operators=preview_network.ort_ops),
                has_operator_library=bool(preview_network.ort_ops),
                reference=preview_network.reference,
            )
            self._open_network = (preview_network, network)
        return self._open_network[1]

    def _build_preview(self, trt: Any, network: Network, request: PreviewRequest, base_preview: Preview) -> Preview:
        start_time = time.perf_counter()
        refuse_unsupported_precisions(
            network, request.config, ASSIGNABLE, f"TensorRT-RTX {trt.__version__}", base_preview.compute_capability
        )
        typed_model = lower_from_source_model(network, request.config, request.ranges)
        model, weights = split_off_weights(typed_model.model)
        if not self.is_wanted:
            raise CancelledError("stopped")
        plugin_error = self._load_new_plugins(trt, request.network)
        try:
            text, printed = build_and_list_engine_layers(
                trt,
                model,
                weights,
                network.path,
                request.profile,
                request.config.tf32,
                base_preview.compute_capability,
                lambda: self.is_wanted,
            )
        except NetworkParseError as error:
            if plugin_error is None:
                raise
            raise NetworkParseError(
                plugin_error.title, f"{plugin_error.cause}; {error.title}", plugin_error.next_step, error.node
            ) from None
        preview = build_preview(
            read_layer_listing(text, network),
            network,
            base_preview.builder_release,
            base_preview.compute_capability,
            time.perf_counter() - start_time,
            base_preview.is_gpu_present,
        )
        return replace(preview, builder_warnings=list_known_warnings(printed), raw_messages=tuple(printed))

    def _load_new_plugins(self, trt: Any, preview_network: PreviewNetwork) -> TrtTuiError | None:
        """Loads the plugin libraries that this process has not loaded yet. Returns the first error; None if all
        libraries load.

        The error is not raised: a library may be for builders of other releases, and this network may not need it.
        """
        first_error: TrtTuiError | None = None
        for path, _ in preview_network.plugins:
            if path not in self._plugin_errors:
                self._plugin_errors[path] = None
                try:
                    load_plugins(trt, f"tensorrt-rtx {trt.__version__}", [path])
                except TrtTuiError as error:
                    self._plugin_errors[path] = error
            first_error = first_error or self._plugin_errors[path]
        return first_error

    def receive_requests(self, pipe: Connection, requests: "queue.SimpleQueue[PreviewRequest]") -> None:
        """Receives requests from a pipe in a thread; None cancels the last one. When the other end closes the pipe, the
        process ends."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                request = pipe.recv()
                self.is_wanted = request is not None  # set first, since an unwanted request is cancelled
                if request is not None:
                    requests.put(request)
        os._exit(0)


def _make_refusal_preview(base_preview: Preview, error: TrtTuiError, network: Network | None) -> Preview:
    """Returns a preview without engine layers, with an error as the reason and the node that the error names."""
    node = error.node if isinstance(error, NetworkParseError) else ""
    if isinstance(error, BuildError) and network is not None:
        exact_groups, possible_groups = find_groups_in_message("\n".join((error.cause, *error.details[-1:])), network)
        node = next((group.name for group in (*exact_groups, *possible_groups)), "")
    refusal = PreviewRefusal(error.title, join_lines(error.cause), error.next_step, node)
    return Preview(
        base_preview.builder_release, base_preview.compute_capability, base_preview.is_gpu_present, refusal=refusal
    )


def main(argv: Sequence[str]) -> None:
    """Runs the preview process. The arguments are the file descriptors of the two pipes, and the niceness of the
    process."""
    descriptor, lifeline, niceness = (int(text) for text in argv)
    os.nice(niceness)
    server, requests = PreviewServer(), queue.SimpleQueue[PreviewRequest]()
    with connect_to_parent(descriptor, lifeline) as pipe, contextlib.suppress(BrokenPipeError):
        threading.Thread(target=server.receive_requests, args=(pipe, requests), daemon=True).start()
        while True:
            pipe.send(server.make_preview(requests.get()))


if __name__ == "__main__":
    main(sys.argv[1:])
