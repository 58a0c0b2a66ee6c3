"""What an error has to say."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trt_tui.errors import InputError, TrtTuiError


@contextmanager
def refused(
    match: str = "", *, title: str = "", cause: str = "", next_step: str = "", kind: type[TrtTuiError] = InputError
) -> Iterator[None]:
    """An error is raised that matches a pattern, whose parts hold some words, and that says what to do next."""
    with pytest.raises(kind, match=match or None) as raised:
        yield
    error = raised.value
    assert title in error.title and cause in error.cause and next_step in error.next_step and error.next_step, error
