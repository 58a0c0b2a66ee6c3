"""What Polygraphy reads, written array by array: RunResults (``polygraphy run --load-outputs``) and inputs."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import numpy as np

_PIECE_BYTES = 3 << 18
"""Bytes that are encoded at a time: whole groups of three."""


class RunResultsWriter:
    """Writes runners one after another, each iteration by iteration, used as a context manager."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._runner: str | None = None
        self._is_first_iteration = True

    def __enter__(self) -> RunResultsWriter:
        self._stream.write(b'{"lst": [')
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self._stream.write((b"]]" if self._runner is not None else b"") + b'], "polygraphy_class": "RunResults"}\n')

    def begin_runner(self, runner_name: str) -> None:
        """Begins a runner; what is added now is its."""
        self._stream.write(b"]], " if self._runner is not None else b"")
        self._stream.write(f"[{json.dumps(runner_name)}, [".encode())
        self._runner, self._is_first_iteration = runner_name, True

    def add_iteration(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Adds an iteration of the runner that was begun last."""
        self._stream.write((b"" if self._is_first_iteration else b", ") + b'{"outputs": {')
        self._is_first_iteration = False
        for number, (name, array) in enumerate(outputs.items()):
            self._stream.write(f"{', ' if number else ''}{json.dumps(name)}: {{\"values\": ".encode())
            _write_array(self._stream, array)
            self._stream.write(b', "polygraphy_class": "LazyArray"}')
        self._stream.write(f'}}, "runtime": null, "runner_name": {json.dumps(self._runner)}, '
                           '"polygraphy_class": "IterationResult"}'.encode())


def write_polygraphy_inputs(stream: BinaryIO, feeds: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes feeds as ``polygraphy run --load-inputs`` reads them, an iteration each."""
    stream.write(b"[")
    for feed_index, feed in enumerate(feeds):
        stream.write(b", {" if feed_index else b"{")
        for array_index, (name, array) in enumerate(feed.items()):
            stream.write(f"{', ' if array_index else ''}{json.dumps(name)}: ".encode())
            _write_array(stream, array)
        stream.write(b"}")
    stream.write(b"]\n")


def _write_array(stream: BinaryIO, array: np.ndarray) -> None:
    stream.write(b'{"array": "')
    for piece in _encode_base64(array):
        stream.write(piece)
    stream.write(b'", "polygraphy_class": "ndarray"}')


def _encode_base64(array: np.ndarray) -> Iterator[bytes]:
    """An ``.npy`` in base64, piece by piece."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array) if array.ndim else array, allow_pickle=False)
    data = buffer.getbuffer()
    for start in range(0, len(data), _PIECE_BYTES):
        yield base64.b64encode(data[start:start + _PIECE_BYTES])
