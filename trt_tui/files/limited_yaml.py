"""A reader of YAML files from elsewhere, limited to plain values. The number of values behind aliases and merge keys is
limited too."""

from typing import Any

import yaml

from trt_tui.errors import InputError

MAX_YAML_VALUES = 1_000_000
"""The maximum number of values of a document, with every alias expanded."""
_MAX_NUMBER_CHARACTERS = 64
"""The maximum length of a number. The conversion of a longer number in base 60 or 10 is slow, and no tool's option
needs one."""


class _LimitedLoader(yaml.SafeLoader):  # type: ignore[misc]
    """A `yaml.SafeLoader` that counts the values behind aliases before any value is built."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._counts: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if is_alias and node not in self._counts:
            raise yaml.constructor.ConstructorError(
                None, None, "an alias refers to an object that contains it", node.start_mark
            )
        if node is not None and not is_alias:
            parts = node.value if isinstance(node, yaml.CollectionNode) else ()
            children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
            self._counts[node] = 1 + sum(self._counts[child] for child in children)
            if self._counts[node] > MAX_YAML_VALUES:
                raise yaml.constructor.ConstructorError(
                    None, None, f"it expands to over {MAX_YAML_VALUES:,} values with its aliases", node.start_mark
                )
        return node

    def construct_number(self, node: yaml.Node) -> int | float:
        """Returns the number of a scalar.

        Raises:
            yaml.YAMLError: The number has too many characters, or no float represents it.
        """
        try:
            if len(node.value) <= _MAX_NUMBER_CHARACTERS:
                is_int = node.tag.endswith(":int")
                number: int | float = self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)
                return number
        except (ValueError, ArithmeticError):
            pass
        raise yaml.constructor.ConstructorError(
            None, None, f"{node.value[:20]} is not a readable number", node.start_mark
        )


for _tag in ("int", "float"):
    _LimitedLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _LimitedLoader.construct_number)


def read_yaml(text: str, file_name: str) -> Any:
    """Returns the value of a YAML document: None, texts, numbers, dates, lists and dictionaries.

    Raises:
        InputError: The text is not YAML, or has too many values.
    """
    try:
        loader = _LimitedLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        location = f"line {mark.line + 1}: " if mark is not None else ""
        raise InputError(
            f"{file_name} is not readable YAML",
            location + (getattr(error, "problem", "") or str(error)),
            "Correct the file; lists that are written out need no aliases.",
        ) from None
