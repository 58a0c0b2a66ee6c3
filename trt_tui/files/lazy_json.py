"""A JSON reader for files of any size that leaves long strings in the memory-mapped file.

Streaming parsers such as ijson return whole strings, and a tensor in JSON is one string of base64. With such a parser,
a gigabyte of values needs several gigabytes of memory. This reader returns a view of the file for each such string. A
list of numbers, the other form of a tensor in JSON, becomes one array. All other text goes to Python's parser.
"""

import itertools
import json
import mmap
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.errors import InputError
from trt_tui.files.reading import limit_file_reading, open_regular_file

MAX_KEPT_STRING_BYTES = 4096
"""The maximum length of a string that is kept in memory. Longer strings stay in the file."""

MAX_VALUES = 4_000_000
"""The maximum number of values in a file, and of its long strings and lists of numbers."""

MAX_KEPT_BYTES = 1 << 30
"""The maximum length of a file without its long strings and its lists of numbers."""

_START_PATTERN = re.compile(rb'["\[]')
_STRING_PATTERN = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NUMBER = (
    rb"\s*+[-+]?+(?:(?:\d{1,40}+(?:\.\d{0,40}+)?+|\.\d{1,40}+)(?:[eE][-+]?+\d{1,9}+)?+|"
    rb"(?i:nan|inf(?:inity)?+))\s*+"
)
"""A number in a list, or ``nan`` and ``inf``, which are not JSON, but C++ programs write them."""
_NUMBER_LIST_PATTERN = re.compile(rb"\[(%b(?:,%b)*+)\]" % (_NUMBER, _NUMBER))
_WHOLE_NUMBERS_PATTERN = re.compile(rb"\s*+-?\d{1,18}+\s*+(?:,\s*+-?\d{1,18}+\s*+)*+")


def read_lazy_json(path: Path, file_name: str) -> Any:
    """Reads a JSON file and returns its value, with each string of over `MAX_KEPT_STRING_BYTES` bytes as a view
    of its bytes in the file.

    Objects become dictionaries; of two equal keys the last counts. A list of numbers becomes an array in int64 or
    float64.

    Args:
        file_name: The name of the file in messages.

    Raises:
        InputError: The file is not JSON, is cut off, is nested too deep, or has over `MAX_VALUES` values, or over
            `MAX_KEPT_BYTES` bytes outside long strings and lists of numbers.
    """
    mark, values = uuid.uuid4().hex, list[Any]()  # no text of the file contains the mark
    with limit_file_reading(path), open_regular_file(path) as file:
        try:
            text = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)  # it is closed with the last view of it
            pieces, position = [], 0
            for start, stop, value in itertools.islice(_find_large_values(text), MAX_VALUES):
                pieces += [text[position:start], b'{"%s": %d}' % (mark.encode(), len(values))]
                values.append(value)
                position = stop
            rest = b"".join((*pieces, text[position : position + MAX_KEPT_BYTES]))
            if len(rest) > MAX_KEPT_BYTES or rest.count(b",") > MAX_VALUES:
                raise ValueError("it has more values than any dump of tensors")
            return json.loads(rest, strict=False, object_hook=lambda item: values[item[mark]] if mark in item else item)
        except ValueError as error:
            cause = getattr(error, "msg", "") or getattr(error, "reason", "") or error
            raise InputError(
                f"{file_name} is not valid JSON",
                f"{cause}; the file may have been cut off",
                "Write the file again; it may be another format.",
            ) from None


def _find_large_values(text: mmap.mmap) -> Iterator[tuple[int, int, memoryview | np.ndarray]]:
    """Yields the start, the end and the value of each long string and of each list of numbers."""
    stop = 0
    while (match := _START_PATTERN.search(text, stop)) is not None:
        start = match.start()
        if match[0] == b'"':
            stop = text.find(b'"', start + 1) + 1
            if text.find(b"\\", start, stop) >= 0:
                whole = _STRING_PATTERN.match(text, start)
                stop = whole.end() if whole is not None else 0
            if not stop:
                raise ValueError("a string does not end")
            if stop - start - 2 > MAX_KEPT_STRING_BYTES:
                yield start, stop, memoryview(text)[start + 1 : stop - 1]
            continue
        numbers = _NUMBER_LIST_PATTERN.match(text, start)
        stop = numbers.end() if numbers is not None else match.end()
        if numbers is not None:
            dtype = np.int64 if _WHOLE_NUMBERS_PATTERN.fullmatch(numbers[1]) else np.float64
            yield start, stop, np.fromstring(numbers[1], dtype, sep=",")
