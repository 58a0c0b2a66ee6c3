"""Reduces full API listings of TensorRT's Python bindings to ``api/*.json``: ``python reduce_api.py SOURCE_FOLDER``.

A source file, ``tensorrt-RELEASE.json`` or ``tensorrt_rtx-RELEASE.json``, maps a class to ``{member: signature or ""}``
and a module's function or constant to a description. The reduced file maps a class to its members, a name whose
signature is known written ``name()``, and ``""`` to the module's other names, a data type written ``name=DataType``.
"""

import json
import sys
from pathlib import Path


def reduce(listing: dict[str, dict[str, str] | str]) -> dict[str, list[str]]:
    """The reduced form of one listing."""
    reduced = {
        "": [
            f"{name}=DataType" if what == "DataType" else name
            for name, what in listing.items()
            if isinstance(what, str)
        ]
    }
    for name, members in listing.items():
        if isinstance(members, dict):
            reduced[name] = [f"{member}()" if signature else member for member, signature in members.items()]
    return reduced


def main(source: Path) -> None:
    for path in sorted(source.glob("tensorrt*.json")):
        kind, release = path.stem.split("-", 1)
        name = f"rtx-{release}.json" if kind == "tensorrt_rtx" else f"{release}.json"
        reduced = reduce(json.loads(path.read_text()))
        lines = [f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in reduced.items()]
        (Path(__file__).parent / "api" / name).write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
