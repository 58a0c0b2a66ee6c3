"""Modules that are loaded when something is asked of them: half of a start, for what hardly any network needs."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

LAZY_MODULES = ("sympy", "onnx_ir._symbolic_shapes")
"""What computes with symbolic sizes, in onnx-ir."""


class _LateLoader(LazyLoader):
    """Tells where a module lies without loading it: `inspect.getmodule`, which Polygraphy calls, asks that of all."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        lazy = type(module)

        class Unasked(lazy):  # type: ignore[misc, valid-type]
            def __getattribute__(self, name: str) -> object:
                if name in ("__class__", "__file__", "__name__", "__spec__"):
                    return object.__getattribute__(self, name)
                if type(self) is Unasked:
                    self.__class__ = lazy  # type: ignore[assignment]
                return getattr(self, name)

        module.__class__ = Unasked


class LazyModuleFinder:
    """Finds `LAZY_MODULES`, wherever they are imported from."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As `importlib.abc.MetaPathFinder` has it."""
        spec = PathFinder.find_spec(name, path, target) if name in LAZY_MODULES else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec


def install_lazy_finder() -> None:
    """Puts the finder before all others."""
    if LazyModuleFinder not in sys.meta_path:
        sys.meta_path.insert(0, LazyModuleFinder)
