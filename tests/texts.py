"""The values in a text, whatever words stand around them."""

import re


def numbers(text: str) -> list[float]:
    """The numbers of a text in their order; digits inside names do not count."""
    return [float(number) for number in re.findall(r"(?<![\w./-])-?\d+(?:\.\d+)?(?![\w/])", text)]


def lacking(text: str, *values: object) -> list[str]:
    """Those of some values that a text does not contain."""
    return [str(value) for value in values if str(value) not in text]


def first_over(text: str) -> list[str]:
    """The tensors that a comparison of two dumps names as the first over the threshold."""
    return re.findall(r"^First over the threshold: (.+?)[,.] ?", text, re.M)
