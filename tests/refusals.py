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
    expected = {"title": title, "cause": cause, "next_step": next_step}
    missing = {part: words for part, words in expected.items() if words not in getattr(error, part)}
    assert not missing, f"{missing} expected in the error: {error}"
    assert error.next_step, f"the error says nothing to do next: {error}"
