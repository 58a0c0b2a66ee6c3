import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_tui.core.data.batches import SampleName
from trt_tui.formatting import (
    add_decibel_unit,
    decibels_text,
    duration_text,
    engine_title,
    escape_hidden_characters,
    number_text,
    percent_text,
    table_lines,
    worst_sample_text,
)

STEERING = [
    *map(chr, range(0x20)),
    "\x7f",
    *map(chr, range(0x80, 0xA0)),
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2060, 0x2070)),
    *map(chr, range(0x200B, 0x2010)),
    "\u2028",
    "\u2029",
    "\u061c",
    "\ufeff",
    "\u00ad",
    "\U000e0041",
    "\ud800",
    "\udcff",
]


@pytest.mark.parametrize("character", [one for one in STEERING if one != "\u2065"], ids=ascii)
def test_what_steers_a_terminal_is_written_out(character):
    shown = escape_hidden_characters(f"a{character}b")
    assert character not in shown and shown.isascii() and shown.isprintable()
    assert shown == f"a{ascii(character)[1:-1]}b"


@pytest.mark.parametrize("text", ["", "/enc1/conv[0]/Conv", "Größe 漢字 é 🙂 ✓ ×", "C:\\x1b", "a b", "[bold]x[/]"])
def test_text_that_can_be_read_stays_as_it_is(text):
    assert escape_hidden_characters(text) == text


def test_lines_stay_where_they_may():
    text = "one\r\n\ttwo\nthr\ree\x1b[2J\u2028"
    assert escape_hidden_characters(text, keep_line_breaks=True) == "one\n    two\nthr\\ree\\x1b[2J\\u2028"
    assert escape_hidden_characters("one\ntwo\t3") == "one\\ntwo\\t3"


def test_anything_with_a_text_can_be_shown():
    assert escape_hidden_characters(ValueError("a\x1b")) == "a\\x1b" and escape_hidden_characters(None) == "None"


@given(st.text(), st.booleans())
def test_what_is_shown_can_be_written_and_shown_again(text, lines):
    shown = escape_hidden_characters(text, lines)
    shown.encode("utf-8")
    assert escape_hidden_characters(shown, lines) == shown and "\x1b" not in shown


@given(st.text(st.characters(codec="utf-8")).filter(lambda text: not text.isprintable()))
def test_no_character_is_lost(text):
    assert len(escape_hidden_characters(text)) >= len(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.000"),
        (0.4731, "0.473"),
        (-0.5, "-0.500"),
        (41.23, "41.2"),
        (1234.5, "1234"),
        (1.2e5, "1.2e5"),
        (1.7e-5, "1.7e-5"),
        (0.004, "0.004"),
        (0.00044, "0.00044"),
        (math.inf, "inf"),
        (1.0, "1.00"),
        (100.0, "100"),
    ],
)
def test_numbers_are_short(value, shown):
    assert number_text(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.523, "~52%"),
        (0.05, "~5%"),
        (0.0098, "~1%"),
        (0.004, "~0.4%"),
        (0.0004, "·"),
        (-0.04, "~-4%"),
        (-0.004, "~-0.4%"),
    ],
)
def test_shares_carry_the_mark_of_the_simulation(share, shown):
    assert percent_text(share, "~") == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (decibels_text(12.34), "~12.3 dB"),
        (decibels_text(12.34, mark=""), "12.3 dB"),
        (decibels_text(None), "–"),
        (decibels_text(None, exact=True), "exact"),
        (decibels_text(3.0, nan=1, inf=1), "NaN"),
        (decibels_text(None, inf=2), "Inf"),
    ],
)
def test_decibels_have_a_unit_where_they_are_a_number(text, shown):
    assert add_decibel_unit(text) == shown


def test_the_worst_sample_is_named_with_its_figure():
    assert worst_sample_text(SampleName(17), 8.12) == "~8.1 #17"
    assert worst_sample_text(SampleName(0, "b.npz"), None, "") == "NaN b.npz #0"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (42.4, "42 s"), (185, "3 min 05 s"), (4800, "1 h 20 min")]
)
def test_durations(seconds, shown):
    assert duration_text(seconds) == shown


def test_engines_are_called_after_their_runs():
    assert [engine_title(run) for run in ("fp16", "int8", "config", "fp32")] == [
        "FP16 engine",
        "INT8 engine",
        "config engine",
        "FP32 engine",
    ]


def test_a_table_has_columns_as_wide_as_their_cells():
    heading = "a long heading of its own"
    lines = table_lines([["layer", "dB"], ["漢字", "~12.3"], [heading], ["\x1b", "4"]])
    assert lines == ["layer     dB", "漢字   ~12.3", heading, "\\x1b       4"]
    assert table_lines([]) == []
