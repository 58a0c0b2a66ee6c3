"""Disks that are full, folders that are gone, links that lead in circles: said plainly, and nothing is lost or left"""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.driven import DrivenWorker, save_mlp
from tests.texts import lacking
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.writing import STALE_S, write_file_atomically
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs import store as cache_module

INT8 = PrecisionConfig.from_precision(Precision.INT8)


@contextmanager
def files_up_to(size: int):
    """No file of this process may grow beyond so many bytes: writes fail, as those to a full disk do."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with mock.patch.object(sys, "dont_write_bytecode", True):  # bytecode would be cut off, and stay
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def small_disk(folder: Path, size: str):
    """A file system of so many bytes at a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    ).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_cache_that_is_full_leaves_nothing_behind_and_loses_nothing(tmp_path):
    cache = cache_module.ResultCache(tmp_path / "results")
    key = cache.make_key("a")
    cache.put(key, "small")
    with files_up_to(1000):
        cache.put(key, "x" * 5000)
        cache.put(cache.make_key("b"), "x" * 5000)
    assert cache.get(key, str) == "small" and cache.get(cache.make_key("b"), str) is None
    assert [path.name for path in (tmp_path / "results").rglob("*") if path.is_file()] == [key]


def test_what_a_killed_writer_left_in_the_cache_goes_and_what_another_program_drops_is_no_error(tmp_path, monkeypatch):
    cache = cache_module.ResultCache(tmp_path, limit_bytes=0)
    cache.put(cache.make_key("a"), "x")
    kept = next(tmp_path.glob("*/*"))
    old, new = (kept.with_name(f".{name}.0123abcd.tmp") for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **more: (unlink(path), unlink(path)))  # gone meanwhile
    cache.trim_to_size_limit()
    assert not old.exists() and not list(tmp_path.glob("*/*")) and STALE_S > 600


@pytest.mark.parametrize(
    "words",
    [
        "build --precision fp16 -o",
        "compare --layers none --json",
        "export --format onnx --precision int8 -o",
        "export --format calibration-cache --precision int8 -o",
        "export --format markdown --precision fp16 -o",
    ],
)
def test_a_full_disk_loses_nothing_that_was_there(run, mlp, tmp_path, words):
    command, *rest = words.split()
    data = ["--data", mlp.data] if "fp16" not in words else []
    with small_disk(tmp_path / "out", "4096") as disk:
        (disk / "out.onnx").write_text("what was there")
        code, _, told = run(command, mlp.model, *data, *rest, disk / "out.onnx")
        assert code == 2 and not lacking(told, disk / "out.onnx", "No space left"), told
        assert "Traceback" not in told
        assert {path.name: path.read_text() for path in disk.iterdir()} == {"out.onnx": "what was there"}


@pytest.mark.parametrize(
    ("words", "kib", "fails_at"),
    [
        ("bundle --for 10 --precision int8 -o", 28, "out.onnx/"),
        ("subgraph --from x --to y --precision int8 -o", 8, "out.onnx/"),
        ("compare --layers none --save-outputs", 4, "out.onnx"),
    ],
)
def test_a_disk_that_fills_up_amid_a_folder_or_the_outputs_leaves_none_of_it(run, mlp, tmp_path, words, kib, fails_at):
    command, *rest = words.split()
    with small_disk(tmp_path / "disk", f"{kib}k") as disk:
        code, _, told = run(command, mlp.model, "--data", mlp.data, *rest, disk / "out.onnx")
        assert code == 2 and f"{disk}/{fails_at}" in told and "No space left" in told, told
        assert not list(disk.iterdir())


def test_a_full_disk_for_temporary_files_fails_the_check_of_a_search_plainly(tmp_path, monkeypatch):
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(save_mlp(tmp_path)))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    failed = worker.answer(rq.FindMixedPrecisionConfig(INT8, check_command="true"))[-1]
    assert isinstance(failed, ev.JobFailed) and "No space left" in failed.error.title
    assert "TMPDIR" in failed.error.next_step and not failed.detail


@pytest.mark.parametrize("command", ["compare --json out.json", "build --precision fp16 -o out.onnx", "inspect", ""])
def test_a_current_folder_that_is_gone_is_said(tmp_path, command):
    options = save_mlp(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    words = command.split()
    line = " ".join([sys.executable, "-m", "trt_tui", *words[:1], options.model, *words[1:]])
    ran = subprocess.run(["bash", "-c", f"cd {gone} && rmdir {gone} && {line}"], capture_output=True, text=True)
    assert ran.returncode == 2 and "no longer exists" in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.parametrize("option", ["--json", "--data", "--config", "--calib-cache", "--metric", "--trtexec"])
def test_links_that_lead_in_circles_are_refused_before_anything_is_measured(run, tmp_path, option):
    options = save_mlp(tmp_path)
    one, other = tmp_path / "one.py", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    words = {"--metric": f"{one}:f", "--trtexec": f"--timingCacheFile={one}"}.get(option, one)
    data = [] if option == "--data" else ["--data", options.data]
    code, shown, told = run("compare", options.model, *data, option, words, "--layers", "none", "--batch", "4")
    if option == "--trtexec":  # no engine is built here
        assert code in (0, 2)
    else:
        assert code == 2 and "Error: " in told and not shown
    assert "Traceback" not in told and "defect" not in told
    assert one.is_symlink() and other.is_symlink()


def test_a_file_that_may_not_grow_is_said(tmp_path):
    out = tmp_path / "out"
    out.write_text("there")
    with files_up_to(100), pytest.raises(InputError, match="cannot be written") as raised:
        write_file_atomically(out, "x" * 1000)
    assert "nothing was written" in raised.value.next_step and out.read_text() == "there"
    assert list(tmp_path.iterdir()) == [out]
