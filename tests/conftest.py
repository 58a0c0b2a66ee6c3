"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from tests import networks
from trt_tui import demo
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.backends.registry import get_backend
from trt_tui.core.network.network import Network, open_network


@pytest.fixture(scope="session")
def backend() -> OnnxRuntimeBackend:
    """ONNX Runtime's CPU provider on two threads."""
    return OnnxRuntimeBackend("cpu", threads=2)


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[onnx.ModelProto], Network]:
    """Opens a model through a file of its own; ONNX Runtime folds its constants."""

    def open_model(model: onnx.ModelProto) -> Network:
        path = tmp_path_factory.mktemp("opened") / "model.onnx"
        onnx.save(model, path)
        return open_network(path, get_backend)

    return open_model


@pytest.fixture(scope="session")
def named_network(opened: Callable[[onnx.ModelProto], Network]) -> Callable[[str], Network]:
    """Opens, once a session, ``demo``, ``light_<name>``, or what a function of `tests.networks` of that name makes."""
    made: dict[str, Network] = {}

    def network(name: str) -> Network:
        if name not in made:
            if name == "demo":
                made[name] = open_network(demo.network_path())
            elif name.startswith("light_"):
                made[name] = opened(networks.light(name.removeprefix("light_")))
            else:
                made[name] = opened(getattr(networks, name)())
        return made[name]

    return network
