"""Arrays in files: what is damaged, promises too much or would fill the disk is refused before it is read."""

import errno
import io
import json
import os
import shutil
import tracemalloc
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from tests.refusals import refused
from trt_tui.core.data import tensor_files
from trt_tui.core.data.batches import MAX_DIMENSION_SIZE
from trt_tui.core.data.samples import load_samples
from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError

F32 = np.dtype("float32")
DYNAMIC = [TensorInfo("x", F32, ("N", 3))]


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npy_that_says(shape: str, descr: str = "<f4", values: bytes = b"") -> bytes:
    """An npy whose header is written as it is given."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + values


def npz(path, method=zipfile.ZIP_STORED, **members: bytes):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("shape", "descr", "cause"),
    [
        ("(17000000000, 3)", "<f4", "declares 204,000,000,000 bytes, 12 are present"),
        ("(2, 3)", "<f4", "declares 24 bytes, 12 are present"),
        ("(-1, 3)", "<f4", "says shape"),
        ("(True, 3)", "<f4", "says shape"),
        ("(1.0, 3)", "<f4", "cannot be read"),
        ("(9" + "9" * 5000 + ", 3)", "<f4", "cannot be read"),
        ("(1, 3", "<f4", "cannot be read"),
        ("(17000000000, 3)", "<U0", "says shape"),
        ("(1, 3)", "|O", "pickled"),
        ("((((1, 3)", "<f4", "cannot be read"),
        ("(" * 3000, "<f4", "cannot be read"),
        ("'\\xff', 3)", "<f4", "cannot be read"),
    ],
)
def test_headers_are_held_against_the_file(tmp_path, method, shape, descr, cause):
    path = npz(tmp_path / "a.npz", method, x=npy_that_says(shape, descr, b"\0" * 12))
    tracemalloc.start()
    with pytest.raises(InputError, match=cause) as error:
        load_samples(path, DYNAMIC)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20 and "a.npz" in error.value.title and error.value.next_step


def test_a_stored_member_is_never_filled_up_with_its_neighbour(tmp_path):
    path = npz(tmp_path / "a.npz", x=npy_that_says("(4, 3)", values=b"\0" * 24), y=npy(np.ones(100)))
    with pytest.raises(InputError, match="declares 48 bytes, 24 are present"):
        load_samples(path, DYNAMIC)
    raw = bytearray(npz(tmp_path / "b.npz", x=npy(np.ones((4, 3), np.float32)), y=npy(np.ones(9))).read_bytes())
    size, entry = len(npy(np.ones((4, 3), np.float32))), raw.index(b"PK\x01\x02")
    raw[entry + 20 : entry + 24] = (size - 48).to_bytes(4, "little")
    (tmp_path / "c.npz").write_bytes(raw)
    with pytest.raises(InputError, match="damaged|cannot be read"):
        load_samples(tmp_path / "c.npz", DYNAMIC)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_what_numpy_does_not_write_is_not_unpacked(tmp_path, method):
    with pytest.raises(InputError, match="packed in a way"):
        load_samples(npz(tmp_path / "a.npz", method, x=npy(np.ones((4, 3), np.float32))), DYNAMIC)


def test_zip_bombs_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "MAX_UNPACKED_BYTES", 1 << 20)
    zeros = npy(np.zeros((1 << 18, 3), np.float32))
    path = npz(tmp_path / "a.npz", zipfile.ZIP_DEFLATED, x=zeros)
    monkeypatch.setattr(tensor_files.ArraySpool, "append_byte_pieces", lambda *_: pytest.fail("unpacked"))
    with refused("zip bomb", next_step="numpy.savez"):
        load_samples(path, DYNAMIC)
    many = npz(tmp_path / "b.npz", zipfile.ZIP_DEFLATED, **{f"y{i}": npy(np.zeros(1 << 17)) for i in range(9)})
    with pytest.raises(InputError, match="zip bomb"):
        load_samples(many, DYNAMIC)
    assert len(load_samples(npz(tmp_path / "c.npz", x=zeros), DYNAMIC).read_feed(0)) == 1, "uncompressed it is taken"


def test_many_small_members_are_not_all_unpacked_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "MAX_IN_MEMORY_BYTES", 1 << 20)
    rng = np.random.default_rng(0)
    arrays = {f"y{i}": npy(rng.integers(0, 255, 1 << 19, np.uint8)) for i in range(16)}
    path = npz(tmp_path / "a.npz", zipfile.ZIP_DEFLATED, x=npy(np.ones((4, 3), np.float32)), **arrays)
    tracemalloc.start()
    part = tensor_files.open_npz(path, "a.npz").load_arrays()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(part) == 17 and peak < 5 << 20


@pytest.mark.parametrize("left", ["none", "little"])
def test_a_full_disk_is_told(tmp_path, monkeypatch, left):
    class Full(io.BytesIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_files, "MAX_IN_MEMORY_BYTES", 0)
    if left == "none":
        monkeypatch.setattr(tensor_files.tempfile, "TemporaryFile", lambda **_: Full())
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=tensor_files.MIN_FREE_DISK_BYTES + 10))
    path = npz(tmp_path / "a.npz", zipfile.ZIP_DEFLATED, x=npy(np.ones((4, 3), np.float32)))
    with refused("does not fit in", next_step="TMPDIR"):
        load_samples(path, DYNAMIC)


@pytest.mark.parametrize("name", ["data.npz", "data.json", "data", "data.py"])
def test_a_pipe_or_a_device_is_no_data(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError):
        load_samples(tmp_path / name, DYNAMIC)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(InputError):
        load_samples(tmp_path / name, DYNAMIC)
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "a.npz")
    with pytest.raises(InputError, match="it is a pipe"):
        load_samples(folder, DYNAMIC)


def test_rows_without_values_are_counted_before_they_are_cut(tmp_path):
    path = npz(tmp_path / "a.npz", x=npy_that_says("(17000000000, 0)"))
    inputs = [TensorInfo("x", F32, ("N", "M"))]
    with refused("would need", next_step="--samples"):
        load_samples(path, inputs)
    assert load_samples(path, inputs, limit=20).count == 20


def test_an_array_in_json_that_promises_more_than_it_has(tmp_path):
    import base64

    raw = base64.b64encode(npy_that_says("(17000000000, 3)", values=b"\0" * 12)).decode()
    (tmp_path / "a.json").write_text(json.dumps([{"x": {"polygraphy_class": "ndarray", "array": raw}}]))
    with pytest.raises(InputError, match="a.json, feed 0: x: an array is damaged"):
        load_samples(tmp_path / "a.json", DYNAMIC)


def test_a_negative_size_is_one_that_is_not_known(tmp_path):
    inputs = [TensorInfo("x", F32, (-1, 3)), TensorInfo("y", F32, (-2,))]
    assert [info.shape for info in inputs] == [(None, 3), (None,)]
    assert load_samples(None, inputs, limit=8).count == 8
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones((6, 3), np.float32), y=np.ones(6, np.float32))
    assert load_samples(path, inputs, batch=2).count == 6


def test_an_empty_first_dimension_leads_nothing(tmp_path):
    inputs = [TensorInfo("roi", F32, (0,)), TensorInfo("x", F32, (2, 3))]
    assert load_samples(None, inputs, limit=4).read_feed(0)["x"].shape == (2, 3)
    path = tmp_path / "a.npz"
    np.savez(path, roi=np.ones(0, np.float32), x=np.ones((4, 3), np.float32))
    assert len(load_samples(path, inputs)) == 2
    np.savez(path, roi=np.ones(3, np.float32), x=np.ones((4, 3), np.float32))
    with pytest.raises(InputError, match="'roi' has size 3 in dimension 0"):
        load_samples(path, inputs)
    assert load_samples(None, inputs[:1]).read_feed(0)["roi"].shape == (0,)


def test_random_inputs_that_no_memory_holds():
    with pytest.raises(InputError, match="do not fit in memory"):
        load_samples(None, DYNAMIC, batch=MAX_DIMENSION_SIZE << 32)
