"""trt_tui.files.reading and trt_tui.files.writing: what is read, what is written over, scratch folders."""

import fcntl
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from trt_tui.errors import InputError
from trt_tui.files import reading as files
from trt_tui.files.writing import (
    STALE_S,
    create_scratch_folder,
    fill_folder_atomically,
    make_private_folder,
    open_atomic_writer,
    remove_unused_scratch_folders,
    write_file_atomically,
)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_scratch_folder_is_gone_after_its_block(scratch):
    with create_scratch_folder() as folder:
        (folder / "network.onnx").write_bytes(b"")
        assert folder.parent == scratch
        remove_unused_scratch_folders()
        assert folder.is_dir(), "its process lives"
    assert not list(scratch.iterdir())


KILLED = """
import os, signal
from pathlib import Path
from trt_tui.files.writing import open_atomic_writer
from trt_tui.files.writing import create_scratch_folder
with create_scratch_folder() as folder, open_atomic_writer(Path(folder.parent) / "out.json") as stream:
    (folder / "network.onnx").write_bytes(b"x")
    stream.write(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_that_a_killed_process_was_filling_goes_with_the_next(tmp_path):
    left, other = tmp_path / ".out.0123abcd.tmp", tmp_path / ".out.89efcdab.tmp"
    for folder in (left, other):
        folder.mkdir()
    (left / "network.onnx").write_text("half")
    os.utime(left, (time.time() - 2 * STALE_S,) * 2)
    with fill_folder_atomically(tmp_path / "out") as made:
        assert not left.exists() and other.exists() and made.parent == tmp_path
        os.utime(made, (time.time() - 2 * STALE_S,) * 2)
        with fill_folder_atomically(tmp_path / "out"):
            assert made.exists(), "another process is still filling it"
        (tmp_path / "out").rmdir()
    assert (tmp_path / "out").is_dir() and not made.exists()


def test_what_killed_processes_left_is_cleared(scratch):
    subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(scratch)})
    folder, temporary = sorted(scratch.iterdir(), key=lambda path: path.is_file())
    assert (folder / "network.onnx").exists() and temporary.suffix == ".tmp"
    others = [scratch / "trt-tui-benchmarks", scratch / "trt-tui-engines-1"]
    for other in others:
        other.mkdir()
    remove_unused_scratch_folders()
    assert sorted(scratch.iterdir()) == sorted([*others, temporary])
    write_file_atomically(scratch / "out.json", "new")
    assert temporary.exists(), "another program may be writing it"
    os.utime(temporary, (0, 0))
    write_file_atomically(scratch / "out.json", "newer")
    remove_unused_scratch_folders()
    assert sorted(scratch.iterdir()) == sorted([*others, scratch / "out.json"])
    assert STALE_S > 600


def test_a_scratch_folder_of_another_container_is_left_alone(scratch):
    """Its process has an id that is nobody's here."""
    with create_scratch_folder() as folder:
        renamed = folder.with_name("trt-tui-run-4194999-abc")
        folder.rename(renamed)
        remove_unused_scratch_folders()
        assert renamed.is_dir()


@pytest.mark.parametrize("step", ["mkdtemp", "open", "flock"])
def test_a_scratch_folder_that_a_starting_process_clears_before_it_is_locked_is_made_again(scratch, monkeypatch, step):
    owner, name = {"mkdtemp": (tempfile, "mkdtemp"), "open": (os, "open"), "flock": (fcntl, "flock")}[step]
    real, calls = getattr(owner, name), []

    def cleared_between(*arguments, **options):
        calls.append(arguments)
        if len(calls) > 1:
            return real(*arguments, **options)
        if step == "flock":
            remove_unused_scratch_folders()
            return real(*arguments, **options)
        result = real(*arguments, **options)
        remove_unused_scratch_folders()
        return result

    monkeypatch.setattr(owner, name, cleared_between)
    with create_scratch_folder() as folder:
        (folder / "network.onnx").write_bytes(b"x")
        remove_unused_scratch_folders()
        assert (folder / "network.onnx").read_bytes() == b"x"
    assert len(calls) > 1 and not list(scratch.iterdir())


def test_a_scratch_folder_that_a_starting_process_is_removing_is_not_used(scratch):
    """The creator waits for the lock of the remover and makes another folder."""
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        env={**os.environ, "TMPDIR": str(scratch)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    taken = first.stdout.readline().strip()
    held = os.open(taken, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    first.stdin.write("lock\n")
    first.stdin.flush()
    shutil.rmtree(taken)
    os.close(held)
    used = first.stdout.readline().strip()
    assert used and used != taken
    first.stdin.close()
    assert first.wait() == 0 and not list(scratch.iterdir())


HOLDS = """
import fcntl, os
from trt_tui.files import writing
real = fcntl.flock
def waits(lock, kind):
    if fcntl.flock is waits:
        fcntl.flock = real
        print(os.readlink(f"/proc/self/fd/{lock}"), flush=True)
        input()
    return real(lock, kind)
fcntl.flock = waits
with writing.create_scratch_folder() as folder:
    print(folder, flush=True)
    import sys
    sys.stdin.read()
"""


@pytest.mark.parametrize("none", [False, True])
def test_no_place_for_a_scratch_folder_is_said_and_the_others_are_still_cleared(monkeypatch, tmp_path, none):
    monkeypatch.setattr(tempfile, "tempdir", None if none else str(tmp_path / "gone"))
    if none:
        monkeypatch.setattr(tempfile, "_get_default_tempdir", Mock(side_effect=FileNotFoundError(2, "No usable one")))
    with pytest.raises(InputError, match="no temporary folder can be made"), create_scratch_folder():
        pass
    remove_unused_scratch_folders()


def test_a_pipe_stays_a_pipe_and_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file_atomically(pipe, "whole")
        assert os.read(reader, 100) == b"whole"
        with pytest.raises(RuntimeError), open_atomic_writer(pipe) as stream:
            stream.write(b"half")
            raise RuntimeError
        assert os.read(reader, 100) == b"", "what raises leaves nothing"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and list(tmp_path.iterdir()) == [pipe]


def test_a_pipe_without_a_name_is_written_to():
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            "from trt_tui.files.writing import write_file_atomically\n"
            "write_file_atomically('/dev/stdout', 'x' * 200_000)",
        ],
        capture_output=True,
        check=True,
    )
    assert process.stdout == b"x" * 200_000


def test_a_pipe_that_nothing_reads_from_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no process reads from it"):
        write_file_atomically(tmp_path / "pipe", b"")


def test_a_device_stays_a_device(tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to("/dev/null")
    write_file_atomically(link, b"x" * 3_000_000)
    assert link.is_symlink() and stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(InputError, match="cannot be written"):
        write_file_atomically("/dev/full", b"x")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_what_utf8_cannot_hold_is_written_so_that_json_reads_it(tmp_path):
    name = "broken\udcff"
    write_file_atomically(tmp_path / "a.json", json.dumps({"name": name}, ensure_ascii=False))
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"name": name}


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("before", "private", "after"),
    [
        (None, False, 0o644),
        (None, True, 0o600),
        (0o600, False, 0o600),
        (0o640, False, 0o640),
        (0o664, False, 0o664),
        (0o644, True, 0o600),
    ],
)
def test_nobody_else_reads_what_is_written_to_a_private_place(tmp_path, before, private, after):
    target, umask = tmp_path / "out.json", os.umask(0o022)
    try:
        if before is not None:
            target.write_text("old")
            target.chmod(before)
        with open_atomic_writer(target, is_private=private) as stream:
            stream.write(b"new")
            (temporary,) = set(tmp_path.iterdir()) - {target}
            assert mode_of(temporary) == (0o644 if before is None and not private else 0o600)
    finally:
        os.umask(umask)
    assert mode_of(target) == after and target.read_text() == "new"


@pytest.mark.parametrize(("refused", "mode"), [(False, 0o660), (True, 0o600)])
def test_a_replaced_file_is_not_given_to_another_group(tmp_path, monkeypatch, refused, mode):
    target = tmp_path / "out.json"
    target.write_text("old")
    target.chmod(0o660)
    chown = Mock(side_effect=PermissionError(1, "Operation not permitted") if refused else None)
    monkeypatch.setattr(os, "chown", chown)
    real, other = os.stat, os.stat(target).st_gid + 1
    monkeypatch.setattr(
        os,
        "stat",
        lambda path, **how: (
            Mock(st_mode=real(path).st_mode, st_gid=other) if Path(path) == target else real(path, **how)
        ),
    )
    write_file_atomically(target, "new")
    monkeypatch.undo()
    assert chown.call_args.args[1:] == (-1, other) and mode_of(target) == mode


@pytest.mark.parametrize(("before", "after"), [(None, 0o755), (0o700, 0o700)])
def test_a_folder_that_takes_the_place_of_an_empty_one_has_its_permissions(tmp_path, before, after):
    place, umask = tmp_path / "out", os.umask(0o022)
    try:
        if before is not None:
            place.mkdir(before)
        with fill_folder_atomically(place) as folder:
            assert mode_of(folder) == 0o700
    finally:
        os.umask(umask)
    assert mode_of(place) == after


def test_a_private_folder_is_made_with_its_parents_and_leaves_others_alone(tmp_path):
    (tmp_path / "state").mkdir(0o755)
    make_private_folder(tmp_path / "state" / "trt-tui" / "logs")
    make_private_folder(tmp_path / "state")
    assert [mode_of(tmp_path / name) for name in ("state", "state/trt-tui", "state/trt-tui/logs")] == [
        0o755,
        0o700,
        0o700,
    ]


@pytest.mark.parametrize("read", [files.read_bytes, files.read_text, files.open_regular_file, files.check_regular_file])
def test_only_regular_files_are_read(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, cause in (("pipe", "it is a pipe"), ("zero", "it is a device"), (".", "it is a folder")):
        with pytest.raises(InputError, match=cause):
            read(tmp_path / name)
    for name in ("none", "zero\0", "x" * 300):
        with pytest.raises(InputError, match="does not exist|cannot be read"):
            read(tmp_path / name)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "large", "wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(InputError, match="at most 268,435,456 are read"):
        files.read_text(tmp_path / "large")
    with pytest.raises(InputError, match="too large"):
        files.read_bytes("/proc/self/maps", 10)
    assert files.read_bytes("/proc/self/cmdline").split(b"\0")[0] and files.read_bytes("/proc/self/smaps")
    (tmp_path / "small").write_bytes(b"1234")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, limits[1]))
    try:
        assert files.read_bytes(tmp_path / "small") == b"1234", "no more is allocated than is read"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert files.read_bytes(tmp_path / "small", 4) == b"1234"


def test_text_is_utf8(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\n")
    assert files.read_text(tmp_path / "a") == "a\r\n"
    (tmp_path / "b").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match="byte 2"):
        files.read_text(tmp_path / "b")
