"""trt_tui.module_path: no file of the current folder runs with a command; scripts import their own helpers."""

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.driven import save_mlp
from trt_tui import module_path
from trt_tui.core.data.userscript import UserFunction, list_script_files
from trt_tui.errors import InputError
from trt_tui.module_path import python_command

ROOT = str(ROOT)

CANARIES = ("onnx_ir", "numpy", "yaml", "json", "onnx", "msgspec", "queue", "onnxruntime", "distributed", "sympy")
"""Modules that processes of this program import."""


def plant(folder: Path, *names: str) -> Path:
    """Puts modules into a folder that leave their names in a file if they are imported; returns the file."""
    ran = folder / "ran"
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name + ' '!r})\nraise SystemExit")
    return ran


def test_no_command_imports_a_module_of_the_current_folder(tmp_path):
    """The processes of a comparison with workers: the program, its child, a fork server and what that starts."""
    options = save_mlp(tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    ran = plant(here, *CANARIES)
    path = os.pathsep.join(("", ROOT, *filter(None, [os.environ.get("PYTHONPATH")])))
    program = subprocess.run(
        [
            Path(sys.executable).with_name("trt-tui"),
            *f"compare {options.model} --data {options.data} --workers 1 --layers none".split(),
        ],
        cwd=here,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert program.returncode == 0, program.stderr
    assert "INT8" in program.stdout and not ran.exists(), ran.read_text()


@pytest.mark.parametrize("module", ["server", "preview_server", "exported_process"])
def test_no_process_imports_a_module_of_the_current_folder(tmp_path, module):
    ran = plant(tmp_path, "re", "click", "traceback", *CANARIES)
    process = subprocess.run(
        python_command(f"trt_tui.jobs.{module}", "none"), cwd=tmp_path, capture_output=True, text=True
    )
    assert "ValueError" in process.stderr and not ran.exists(), process.stderr


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "trt_tui"], python_command("trt_tui")], ids=["by a user", "by this program"]
)
def test_the_program_started_by_its_module_leaves_the_current_folder(tmp_path, command):
    """Python itself puts the folder first for ``python -m trt_tui``."""
    ran = plant(tmp_path, "re", "click", "traceback", *CANARIES)
    process = subprocess.run(
        [*command, "--version"], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT}
    )
    assert "version" in process.stdout and not ran.exists(), process.stderr


@pytest.mark.parametrize("others", [(), ("collections", "types", "keyword")])
def test_the_installed_script_imports_nothing_of_the_current_folder(tmp_path, others):
    """An empty element of PYTHONPATH names the folder; only frozen modules are imported before it is removed."""
    ran = plant(tmp_path, "re", "click", "traceback", "enum", "typing", *others, *CANARIES)
    process = subprocess.run(
        [sys.executable, Path(ROOT) / "trt_tui" / "bin" / "trt-tui", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(("", ROOT))},
    )
    assert "version" in process.stdout and not ran.exists(), process.stderr


def test_what_a_child_starts_by_multiprocessing_searches_no_current_folder(tmp_path):
    """Dask starts its workers so, and a user's script may."""
    ran = plant(tmp_path, "queue", "numpy", "yaml")
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "starts.py").write_text(
        "import multiprocessing, os\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.set_forkserver_preload(['numpy', 'yaml'])\n"
        "    for kind in ('forkserver', 'spawn'):\n"
        "        one = multiprocessing.get_context(kind).Process(target=os.getcwd)\n"
        "        one.start(); one.join(); print(one.exitcode)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "program")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment["PYTHONPATH"])
        command = python_command("starts")
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert process.stdout.split() == ["0", "0"] and not ran.exists(), process.stderr


@pytest.mark.parametrize(
    ("path", "left"),
    [("/a:/b", None), (":/a", "/a"), ("/a:", "/a"), (":", ""), ("", None), (":{here}:/a", None), ("::.", None)],
)
def test_an_empty_element_is_dropped_unless_the_folder_is_named(monkeypatch, tmp_path, path, left):
    monkeypatch.chdir(tmp_path)
    value = path.format(here=tmp_path)
    monkeypatch.setenv("PYTHONPATH", value)
    monkeypatch.setattr(sys, "path", ["/bin", str(tmp_path), "/lib"])
    module_path.remove_current_folder_from_path()
    assert (str(tmp_path) in sys.path) == (left is None)
    assert os.environ["PYTHONPATH"] == (left if left is not None else value.replace("::", "").removeprefix(":"))
    assert python_command("x").count("-c") == 1 and "''," not in python_command("x")[-1]


@pytest.mark.parametrize("kind", ["site-packages", "python", "package"])
def test_a_folder_that_python_searches_in_any_case_stays(monkeypatch, tmp_path, kind):
    here = {
        "site-packages": tmp_path / kind,
        "python": Path(os.__file__).parent,
        "package": Path(module_path.__file__).parents[1],
    }[kind]
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", ":")
    monkeypatch.setattr(sys, "path", [str(here), "/lib"])
    module_path.remove_current_folder_from_path()
    assert sys.path == [str(here), "/lib"]


# -- scripts of users -------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import helper, colorsys, yaml
def metric():
    import later
    return helper.__file__, later.__file__, colorsys.__file__, yaml.__file__, sys.path[-1]
"""


def test_a_script_finds_its_helpers_and_replaces_no_installed_module(monkeypatch, tmp_path):
    for name in ("helper", "later", "colorsys", "yaml"):
        (tmp_path / f"{name}.py").write_text("x = 1")
    (tmp_path / "script.py").write_text(SCRIPT)
    for name in ("colorsys", "yaml"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    *files, last = UserFunction("script.py", "metric")()
    own = [Path(file).parent == tmp_path for file in files]
    assert own == [True, True, False, False] and last == str(tmp_path)
    assert sys.path == before


def test_scripts_of_two_folders_have_helpers_of_one_name(tmp_path):
    functions = []
    for value in (1, 2):
        folder = tmp_path / str(value)
        folder.mkdir()
        (folder / "helper.py").write_text(f"import deeper\nVALUE = {value}")
        (folder / "deeper.py").write_text("")
        (folder / "script.py").write_text(
            "import helper\ndef metric():\n    import helper as again\n"
            "    return helper.VALUE, again.VALUE, helper is again"
        )
        functions.append(UserFunction(folder / "script.py", "metric"))
        assert {file.name for file in list_script_files(folder / "script.py")} == {
            "script.py",
            "helper.py",
            "deeper.py",
        }
    assert [function() for function in functions * 2] == [(1, 1, True), (2, 2, True)] * 2


def test_bytecode_of_a_replaced_script_or_helper_is_not_run(tmp_path, monkeypatch):
    """Python takes bytecode for current by the size and the time of the source alone."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "parts").mkdir()
    files = [tmp_path / "helper.py", tmp_path / "parts" / "inner.py", tmp_path / "metric.py"]
    for factor in (2, 3):
        files[0].write_text(f"A = {factor}")
        files[1].write_text(f"B = {factor}")
        files[2].write_text(f"import helper\nfrom parts import inner\ndef f():\n    return {factor}, helper.A, inner.B")
        for file in files:
            os.utime(file, (10**9, 10**9))
            if factor == 2:
                py_compile.compile(str(file))
        assert UserFunction(files[2], "f")() == (factor,) * 3
    assert len(list(tmp_path.rglob("*.pyc"))) == len(files), "none is written"


def test_a_folder_that_was_on_the_path_before_stays_in_its_place(monkeypatch, tmp_path):
    (tmp_path / "script.py").write_text("def metric():\n    return 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.path)
    UserFunction(tmp_path / "script.py", "metric")()
    assert sys.path == before


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("import PIL.Image", "Install Pillow in trt-tui's environment"),
        ("def metric():\n    from sklearn import metrics", "Install scikit-learn in trt-tui's environment"),
        ("import absent_helper.part", "or put absent_helper.py beside the script"),
        ("import json.absent", "Correct "),
    ],
)
def test_a_package_that_a_script_misses_is_named_as_it_is_installed(monkeypatch, tmp_path, code, advice):
    for name in ("PIL", "sklearn"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    (tmp_path / "script.py").write_text(code)
    with pytest.raises(InputError) as refused:
        UserFunction(tmp_path / "script.py", "metric")()
    assert advice in refused.value.next_step


@pytest.mark.parametrize(
    "code", ["from click import mine\ndef metric(): ...", "import click\nclick.mine()", "import click.mine"]
)
def test_a_helper_that_an_installed_module_hides_is_named(tmp_path, code):
    (tmp_path / "script.py").write_text(code)
    with pytest.raises(InputError) as told:
        UserFunction(tmp_path / "script.py", "metric")
    assert told.value.next_step == f"Correct {tmp_path / 'script.py'}."
    (tmp_path / "click.py").write_text("mine = 1")
    with pytest.raises(InputError) as told:
        UserFunction(tmp_path / "script.py", "metric")
    assert told.value.next_step.startswith(f"Rename {tmp_path / 'click.py'}: an installed module has the same name")


def test_a_module_of_the_current_folder_is_named_with_what_has_it_searched(tmp_path, monkeypatch):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "script.py").write_text("from ours_of_here.deep import metric")
    (tmp_path / "ours_of_here").mkdir()
    (tmp_path / "ours_of_here" / "deep.py").write_text("def metric(): ...")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as told:
        UserFunction(scripts / "script.py", "metric")
    assert told.value.next_step.startswith(f"Set PYTHONPATH to {tmp_path}: the current folder has ours_of_here")
