"""The program in the environment of the README's install: nothing but what the extra `cpu` requires is there."""

import ast
import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.driven import LIMIT_S, save_mlp
from tests.test_readme import ROOT, read_project

MODULES = metadata.packages_distributions()
"""The installed distributions of each module that can be imported."""

MODULE_NAMES = {"pyyaml": "yaml", "scikit-learn": "sklearn", "onnxruntime-gpu": "onnxruntime"}
"""The modules of distributions under another name."""

EXTRAS = {"backends/": ("cpu", "tensorrt", "rtx"), "cluster/": ("cluster",), "demo/": ("train",)}
"""The parts of the program that import what only an extra installs, and report if it is not there."""

BLOCK = """
from importlib.machinery import PathFinder
find_spec = PathFinder.find_spec
PathFinder.find_spec = staticmethod(lambda name, path=None, target=None: (
    None if name.partition('.')[0] in {blocked!r} else find_spec(name, path, target)))
"""


@cache
def declared(*extras: str) -> list[Requirement]:
    project = read_project()
    texts = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    return [one for one in map(Requirement, texts) if one.marker is None or one.marker.evaluate()]


def required_names(requirements: list[Requirement]) -> set[str]:
    """The distributions that an install of requirements brings."""
    names: set[str] = set()
    pending = [(canonicalize_name(one.name), frozenset(one.extras)) for one in requirements]
    while pending:
        name, extras = pending.pop()
        if name in names and not extras:
            continue
        names.add(name)
        for one in map(Requirement, metadata.requires(name) or ()):
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                if canonicalize_name(one.name) not in names:
                    pending.append((canonicalize_name(one.name), frozenset(one.extras)))
    return names


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of an environment in which only the extra `cpu` can be imported."""
    folder = tmp_path_factory.mktemp("installed")
    names = required_names(declared("cpu"))
    blocked = {
        module for module, distributions in MODULES.items() if names.isdisjoint(map(canonicalize_name, distributions))
    } - {"trt_tui", "onnxruntime"}
    assert {"psutil", "pytest", "polygraphy", "distributed"} & MODULES.keys() <= blocked
    (folder / "sitecustomize.py").write_text(BLOCK.format(blocked=blocked))
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))), "TERM": "xterm-256color"}


def imported_modules(text: str) -> set[str]:
    """The modules that a file imports from elsewhere, wherever the import is in the file."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


def test_each_import_is_of_a_declared_dependency():
    for path in (ROOT / "trt_tui").rglob("*.py"):
        name, text = path.relative_to(ROOT / "trt_tui").as_posix(), path.read_text()
        extras = next((extras for part, extras in EXTRAS.items() if name.startswith(part)), ())
        names = {canonicalize_name(one.name) for one in declared(*extras)}
        known = (
            {MODULE_NAMES.get(name, name.replace("-", "_")) for name in names}
            | sys.stdlib_module_names
            | {"trt_tui", "_typeshed"}
        )
        if not {*re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE)} <= known:  # maybe a text in the file
            assert imported_modules(text) <= known, path


COMMANDS = {
    "doctor": 0,
    "inspect mlp.onnx": 0,
    "lint mlp.onnx": 0,
    "compare mlp.onnx --data mlp.npz": 0,
    "compare mlp.onnx --data mlp.npz --workers 2": 3,
    "search mlp.onnx --data mlp.npz --target sqnr>=10 -o found.json": 0,
    "preflight mlp.onnx --data mlp.npz": 0,
    "bundle mlp.onnx --data mlp.npz --precision fp16 --for 10 -o bundle": 0,
    "build mlp.onnx --data mlp.npz --precision fp16 -o typed.onnx": 0,
    "build mlp.onnx --data mlp.npz --precision fp16 -o mlp.plan": 3,
    "mlp.onnx": 2,
}
"""Command lines with their exit codes. The app needs a terminal, engines TensorRT, and workers Dask."""

RUN_ALL = """
import sys
from trt_tui.cli.main import main
for command in sys.argv[1:]:
    try:
        main(command.split())
    except SystemExit as stop:
        print('code', stop.code, command, flush=True)
"""


def installed_folder(folder: Path, environment: dict[str, str]) -> dict[str, object]:
    """Writes a network with samples. Returns the arguments of a process that works in the folder."""
    save_mlp(folder)
    state = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "CACHE", "CONFIG")}
    return {"cwd": folder, "env": {**environment, **state}}


def test_each_command_starts(tmp_path, environment):
    process = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *COMMANDS],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        **installed_folder(tmp_path, environment),
    )
    codes = {command: int(code) for code, command in re.findall(r"^code (\d+) (.*)$", process.stdout, re.MULTILINE)}
    assert codes == COMMANDS and "Traceback" not in process.stderr, process.stderr


class App:
    """The app in a terminal. `screen` is all that it has written."""

    def __init__(self, **options: object) -> None:
        self.terminal, program_end = pty.openpty()
        fcntl.ioctl(program_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        command = [sys.executable, "-m", "trt_tui", "mlp.onnx", "--data", "mlp.npz", "--no-preview"]
        self.process = subprocess.Popen(
            command, stdin=program_end, stdout=program_end, stderr=program_end, start_new_session=True, **options
        )
        os.close(program_end)
        self.screen = ""

    def wait_for(self, is_done: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not is_done() and self.process.poll() is None and time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # the terminal of a program that has ended
                    self.screen += os.read(self.terminal, 1 << 16).decode(errors="replace")
        assert is_done(), self.screen

    def wait_for_text(self, text: str) -> None:
        self.wait_for(lambda: text in self.screen)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


def test_apps_on_one_network_start_and_resume_after_a_kill(tmp_path, environment):
    """A second app, and one that starts after the first was killed."""
    options, apps = installed_folder(tmp_path, environment), []
    try:
        for number in range(3):
            apps.append(App(**options))
            apps[-1].wait_for_text("FAIL" if number == 0 else "Resumed")
            if number == 0:
                os.write(apps[0].terminal, b" ")
                apps[0].wait_for(lambda: [*tmp_path.glob("state/**/*.json")])
            if number == 1:
                apps[0].close()
        os.write(apps[-1].terminal, b"q")
        apps[-1].wait_for(lambda: apps[-1].process.poll() is not None)
        assert apps[-1].process.returncode == 0
    finally:
        for app in apps:
            if app.process.poll() is None:
                app.close()
