"""Several programs on one cache, one folder of logs and one place at the same time: none damages what another has"""

import os
import subprocess
import sys
import threading
import time

from trt_tui.backends.tensorrt import TensorRTLog, _write_timing_cache
from trt_tui.files.locks import file_lock
from trt_tui.jobs import client
from trt_tui.jobs.client import MAX_KEPT_LOGS, child_log_path
from trt_tui.jobs.store import ResultCache

HAMMER = """
import sys
from pathlib import Path
from trt_tui.files.writing import write_file_atomically
from trt_tui.jobs.store import ResultCache
cache, out = ResultCache(Path(sys.argv[1]), limit_bytes=20_000), Path(sys.argv[2])
for turn in range(50):
    key = cache.make_key(turn % 7)
    cache.put(key, str(turn % 7) * 5000)
    found = cache.get(key, str)
    assert found is None or found == str(turn % 7) * 5000, found[:10]
    cache.trim_to_size_limit()
    write_file_atomically(out, str(turn % 7) * 5000)
    text = out.read_text()
    assert len(text) == 5000 and len(set(text)) == 1
"""


def test_a_cache_and_a_file_that_several_programs_write_stay_whole(tmp_path):
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, tmp_path / "results", tmp_path / "out"], stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for program in programs:
        _, told = program.communicate(timeout=120)
        assert program.returncode == 0, told
    assert not [path for path in tmp_path.rglob("*.tmp")]
    ResultCache(tmp_path / "results", limit_bytes=0).trim_to_size_limit()
    assert not [path for path in (tmp_path / "results").rglob("*") if path.is_file()]


class Tactics:
    """A builder's config with its timing cache: words for tactics."""

    def __init__(self, words: bytes) -> None:
        self.words = set(words.split())

    def get_timing_cache(self):
        return self

    def create_timing_cache(self, held: bytes):
        return Tactics(held)

    def combine(self, other, ignore_mismatch: bool) -> None:
        self.words |= other.words

    def serialize(self) -> bytes:
        return b" ".join(sorted(self.words))


def test_a_timing_cache_that_another_program_extends_is_waited_for_and_loses_nothing(tmp_path):
    path, log = tmp_path / "timing.cache", TensorRTLog()
    path.write_bytes(b"ours")
    with file_lock(path, 1.0):
        writing = threading.Thread(target=_write_timing_cache, args=(log, Tactics(b"mine"), path, False))
        writing.start()
        writing.join(0.1)
        assert writing.is_alive() and path.read_bytes() == b"ours"
        path.write_bytes(b"ours theirs")
    writing.join()
    assert path.read_bytes() == b"mine ours theirs"


def test_logs_of_running_programs_stay_and_old_ones_go(monkeypatch):
    folder, mine = child_log_path().parent, child_log_path()
    folder.mkdir(parents=True)
    logs = [folder / f"worker-{number}.log" for number in range(2 * MAX_KEPT_LOGS)]
    for age, path in enumerate(logs):
        path.write_text("x")
        os.utime(path, (time.time() - 3600 * (age + 12),) * 2)
    stat = type(folder).stat
    monkeypatch.setattr(
        type(folder), "stat", lambda path, **more: (path.unlink() if path == logs[-1] else None, stat(path, **more))[1]
    )  # another program was first
    with client._open_log_file() as stream:
        assert stream.name != os.devnull
    monkeypatch.undo()
    assert set(folder.glob("*.log")) == {*logs[:12], mine}
