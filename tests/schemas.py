"""The JSON Schemas that ship with the package, and records held against them."""

import json
from importlib import resources
from typing import Any

import jsonschema


def schema(name: str = "precision-config-v2") -> dict[str, Any]:
    return json.loads(resources.files("trt_tui.core").joinpath("schemas", f"{name}.json").read_text("utf-8"))


def mismatches(record: Any, name: str = "precision-config-v2", part: str = "") -> list[str]:
    """Where a record departs from a schema, or from one of its definitions; empty if it fits."""
    described = schema(name)
    if part:
        described = {"$defs": described["$defs"], "$ref": f"#/$defs/{part}"}
    validator = jsonschema.Draft202012Validator(described)
    validator.check_schema(described)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(record)]
