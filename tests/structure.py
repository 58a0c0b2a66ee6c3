"""The part of JSON Schema that the package's schemas use."""

from __future__ import annotations

from typing import Any

_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
          "number": (int, float)}


def mismatches(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, where: str = "$") -> list[str]:
    """Where a JSON value departs from a schema; empty if it fits."""
    root = root or schema
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return mismatches(value, target, root, where)
    found = []
    if "const" in schema and value != schema["const"]:
        found.append(f"{where}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r} is none of {schema['enum']}")
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        fits = any(isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
                   for name in names)
        if not fits:
            return [*found, f"{where}: {value!r} is no {' or '.join(names)}"]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            found.append(f"{where}: {value} is out of bounds")
    if isinstance(value, dict):
        found += [f"{where}: {key} is missing" for key in schema.get("required", ()) if key not in value]
        for key, inner in value.items():
            entry = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            if entry is False:
                found.append(f"{where}: {key} is not foreseen")
            elif entry is not True:
                found += mismatches(inner, entry, root, f"{where}.{key}")
    if isinstance(value, list) and "items" in schema:
        for index, inner in enumerate(value):
            found += mismatches(inner, schema["items"], root, f"{where}[{index}]")
    return found
