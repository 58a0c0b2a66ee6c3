"""The words and marks of the app, of ``--help`` and of reports, each explained in one or two sentences for users.

``glossary.json`` lists them: the words by subject, and the marks by the place where they have a meaning. The app shows
these texts for a clicked word and finds them on the help page. A word has no other meaning in any text.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec


class Term(msgspec.Struct, frozen=True, array_like=True):
    """A word or a mark that is explained to users.

    Attributes:
        name: The word as texts write it, or the character of the mark.
        explanation: One or more sentences.
        other_names: Short forms, column titles and related words with the same explanation. Plurals are found without.
        place: Where a mark has this meaning; "" for a word.
    """

    name: str
    explanation: str
    other_names: tuple[str, ...] = ()
    place: str = ""

    def is_named(self, text: str) -> bool:
        """Returns True if a text is one of the names or its plural, in any case."""
        names = {name.lower() for name in (self.name, *self.other_names)}
        return not names.isdisjoint((text.lower(), text.lower().removesuffix("s")))


class _Glossary(msgspec.Struct):
    words: list[Term]
    marks: dict[str, list[Term]]


@cache
def _read_glossary() -> _Glossary:
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_Glossary)


def list_words() -> list[Term]:
    """Returns all words, by subject."""
    return _read_glossary().words


@cache
def list_marks() -> list[Term]:
    """Returns all marks. A character can have several meanings, in different places."""
    return [
        msgspec.structs.replace(mark, place=place) for place, marks in _read_glossary().marks.items() for mark in marks
    ]


@cache
def find_term(name: str) -> Term | None:
    """Returns the word with a name, in any case; a plural s is ignored if needed. None if there is no such word."""
    exact = (term for term in list_words() if name.lower() in map(str.lower, (term.name, *term.other_names)))
    return next(exact, None) or next((term for term in list_words() if term.is_named(name)), None)


def explain_word(name: str) -> str:
    """Returns the explanation of a word that is in the glossary."""
    return next(term.explanation for term in list_words() if term.name == name)


def find_marks(text: str, place: str, symbols: Iterable[str] = ()) -> list[Term]:
    """Returns the marks of a place that a text contains; of some symbols alone if any are given."""
    allowed = tuple(symbols)
    return [
        mark
        for mark in list_marks()
        if mark.place == place and mark.name in text and (not allowed or mark.name in allowed)
    ]
