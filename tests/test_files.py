"""trt_tui.core.files: scratch folders"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from trt_tui.core.files import clear_scratch, scratch_folder


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_scratch_folder_is_gone_after_its_block(scratch):
    with scratch_folder() as folder:
        (folder / "network.onnx").write_bytes(b"")
        assert folder.parent == scratch
        clear_scratch()
        assert folder.is_dir(), "its process lives"
    assert not list(scratch.iterdir())


def test_what_killed_processes_left_is_cleared(scratch):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    left = scratch / f"trt-tui-{process.pid}-abc_1"
    left.mkdir()
    (left / "network.onnx").write_bytes(b"")
    others = [scratch / "trt-tui-benchmarks", scratch / "trt-tui-engines-1", scratch / f"trt-tui-{os.getpid()}-x"]
    for other in others:
        other.mkdir()
    clear_scratch()
    assert sorted(scratch.iterdir()) == sorted(others)
