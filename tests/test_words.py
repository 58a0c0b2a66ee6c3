"""trt_tui.words"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_tui.words import visible

STEERING = [*map(chr, range(0x20)), "\x7f", *map(chr, range(0x80, 0xA0)), *map(chr, range(0x202A, 0x202F)),
            *map(chr, range(0x2060, 0x2070)), *map(chr, range(0x200B, 0x2010)), "\u2028", "\u2029", "\u061c", "\ufeff",
            "\u00ad", "\U000e0041", "\ud800", "\udcff"]


@pytest.mark.parametrize("character", [one for one in STEERING if one != "\u2065"], ids=ascii)
def test_what_steers_a_terminal_is_written_out(character):
    shown = visible(f"a{character}b")
    assert character not in shown and shown.isascii() and shown.isprintable()
    assert shown == f"a{ascii(character)[1:-1]}b"


@pytest.mark.parametrize("text", ["", "/enc1/conv[0]/Conv", "Größe 漢字 é 🙂 ✓ ×", "C:\\x1b", "a b", "[bold]x[/]"])
def test_text_that_can_be_read_stays_as_it_is(text):
    assert visible(text) == text


def test_lines_stay_where_they_may():
    text = "one\r\n\ttwo\nthr\ree\x1b[2J\u2028"
    assert visible(text, lines=True) == "one\n    two\nthr\\ree\\x1b[2J\\u2028"
    assert visible("one\ntwo\t3") == "one\\ntwo\\t3"


def test_anything_with_a_text_can_be_shown():
    assert visible(ValueError("a\x1b")) == "a\\x1b" and visible(None) == "None"


@given(st.text(), st.booleans())
def test_what_is_shown_can_be_written_and_shown_again(text, lines):
    shown = visible(text, lines)
    shown.encode("utf-8")
    assert visible(shown, lines) == shown and "\x1b" not in shown


@given(st.text(st.characters(codec="utf-8")).filter(lambda text: not text.isprintable()))
def test_no_character_is_lost(text):
    assert len(visible(text)) >= len(text)
