"""Fixtures that several test files share."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from packaging.version import Version

from tests import networks, nursery, standins
from tests.driven import DrivenSession, isolate, save_mlp
from tests.networks import quiet_session
from trt_tui import demo
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.backends.registry import get_simulation_backend
from trt_tui.cli.main import main
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.options import Options
from trt_tui.session.session import Session

# Test modules and a hundred child processes compile nothing twice, also where the environment keeps no bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A failed assertion prints its values: a whole network would hide them.
for large in (Network, ir.Model, OnnxRuntimeBackend):
    large.__repr__ = lambda self: f"<{type(self).__name__} {getattr(self, 'name', None) or ''}>"


def pytest_collection_finish() -> None:
    """What is imported and collected stays: searching it for garbage took a sixth of the time of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what one release of TensorRT-RTX makes of a network, and what an older ONNX Runtime computes otherwise."""
    for mark in item.iter_markers("onnxruntime"):
        import onnxruntime  # after trt_tui, which turns its telemetry off

        if Version(onnxruntime.__version__) < Version(mark.args[0]):
            pytest.skip(f"ONNX Runtime {onnxruntime.__version__} is older than {mark.args[0]}")
    for mark in item.iter_markers("rtx"):
        if mark.args:
            trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
            if not trt.__version__.startswith(mark.args[0]):
                pytest.skip(f"TensorRT-RTX {trt.__version__} is another release than {mark.args[0]}")


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(autouse=True)
def _isolated(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The user's state and cache are the test's own."""
    mark = request.node.get_closest_marker("shares_cache")
    is_shared = mark is not None and mark.args != (False,)
    isolate(monkeypatch, tmp_path, tmp_path_factory.getbasetemp() / "cache" if is_shared else None)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # nothing of a test outlives a loss of power
    monkeypatch.setattr(Session, "requests_previews", False)
    monkeypatch.setattr(Session, "requests_toggles", False)


@pytest.fixture(autouse=True)
def _forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes are forked, but where a test holds how they start and end."""
    if not request.node.get_closest_marker("spawned"):
        nursery.use(monkeypatch)


@pytest.fixture(scope="session")
def backend() -> OnnxRuntimeBackend:
    """ONNX Runtime's CPU provider on two threads."""
    return OnnxRuntimeBackend("cpu", threads=2)


@pytest.fixture
def mlp(tmp_path: Path) -> Options:
    """The options that open a three-layer network with 16 samples."""
    return save_mlp(tmp_path)


@pytest.fixture
def answered(mlp: Options) -> tuple[Options, np.ndarray, np.ndarray]:
    """The same, its samples, and what it computes on all of them."""
    with np.load(mlp.data) as data:
        x = data["x"]
    return mlp, x, quiet_session(onnx.load(mlp.model)).run(None, {"x": x})[0]


@pytest.fixture
def config(tmp_path: Path, mlp: Options) -> Path:
    """A config of the three-layer network with one group in FP32 and with ranges, in a file."""
    network = open_network(mlp.model)
    made = PrecisionConfig.from_precision(Precision.INT8).with_group_precision(network.groups[:1], Precision.FP32)
    for tensor in network.calibrated_tensors:
        made = made.with_range(tensor, RangeMove(4.0))
    (tmp_path / "precision.json").write_text(config_text(network, made))
    return tmp_path / "precision.json"


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The current folder is the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process; returns exit code, stdout and stderr."""

    def run_it(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        return stop.value.code, *capfd.readouterr()

    return run_it


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the next child process the stand-in of a TensorRT release."""

    def choose(release: str, **variables: str) -> None:
        for name in ("STANDIN_FAULT", "STANDIN_STEP_SECONDS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {**standins.environment(release), **variables}.items():
            monkeypatch.setenv(name, value)

    return choose


@pytest.fixture
def command(
    run: Callable[..., tuple[int, str, str]], standin: Callable[..., None]
) -> Callable[..., subprocess.CompletedProcess]:
    """Runs a command whose child process has the stand-in of a release."""

    def run_it(release: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
        standin(release, **variables)
        return subprocess.CompletedProcess(arguments, *run(*arguments))

    return run_it


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Callable[..., DrivenSession]]:
    """Makes sessions, with child processes and of a three-layer network by default; closes them."""
    sessions = []

    def make(
        options: Options | None = None, kind: type[DrivenSession] = DrivenSession, **arguments: Any
    ) -> DrivenSession:
        made = kind(options or save_mlp(tmp_path), tmp_path, **arguments)
        sessions.append(made)
        return made

    yield make
    for made in sessions:
        made.close()


@pytest.fixture(scope="session")
def measured_before(common_folder: Path) -> None:
    """Gives sessions on the null backend one folder for what they measure."""
    from tests.local import NullSession

    NullSession.measured_before = common_folder / "measured"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, measured_before: None) -> None:
    """Timers of the app that do not keep tests waiting; it is drawn where `tests.screen.settle` finds it at rest."""
    from textual._compositor import Compositor

    from trt_tui.tui import main_screen
    from trt_tui.tui.controllers import presenter

    monkeypatch.setattr(main_screen, "MIN_DRAW_INTERVAL_S", 0.002)
    monkeypatch.setattr(presenter, "MIN_CURSOR_REST_S", 0.005)
    draw = Compositor.render_update
    monkeypatch.setattr(
        Compositor, "render_update", lambda self, full=False, **given: draw(self, full, **given) if full else None
    )
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[onnx.ModelProto], Network]:
    """Opens a model through a file of its own; ONNX Runtime folds its constants."""

    def open_model(model: onnx.ModelProto) -> Network:
        path = tmp_path_factory.mktemp("opened") / "model.onnx"
        onnx.save(model, path)
        return open_network(path, get_simulation_backend)

    return open_model


@pytest.fixture(scope="session")
def named_network(opened: Callable[[onnx.ModelProto], Network]) -> Callable[[str], Network]:
    """Opens, once a session, ``demo``, ``light_<name>`` or ``light_<name>:<until>``, or what a function of
    `tests.networks` of that name makes.
    """
    made: dict[str, Network] = {}

    def network(name: str) -> Network:
        if name not in made:
            if name == "demo":
                made[name] = open_network(demo.network_path())
            elif name.startswith("light_"):
                light, _, until = name.removeprefix("light_").partition(":")
                made[name] = opened(networks.light(light, until=until))
            else:
                made[name] = opened(getattr(networks, name)())
        return made[name]

    return network
