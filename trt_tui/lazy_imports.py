"""Lazy imports: modules that are loaded at the first access to one of their attributes.

Loading `LAZY_MODULES` takes half of the start-up time, and hardly any network needs these modules.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

LAZY_MODULES = ("sympy", "onnx_ir._symbolic_shapes")
"""The modules with which onnx-ir computes symbolic sizes."""


class _LazyModuleLoader(LazyLoader):
    """A lazy loader whose modules report their file and name without being loaded.

    `inspect.getmodule`, which Polygraphy calls, reads the file and the name of every module.
    """

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        lazy = type(module)

        class UnloadedModule(lazy):  # type: ignore[misc, valid-type]
            def __getattribute__(self, name: str) -> object:
                if name in ("__class__", "__file__", "__name__", "__spec__"):
                    return object.__getattribute__(self, name)
                if type(self) is UnloadedModule:
                    self.__class__ = lazy  # type: ignore[assignment]
                return getattr(self, name)

        module.__class__ = UnloadedModule


class LazyModuleFinder:
    """The import finder that loads `LAZY_MODULES` at their first use."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Implements `importlib.abc.MetaPathFinder.find_spec`. Returns None for all modules except `LAZY_MODULES`."""
        spec = PathFinder.find_spec(name, path, target) if name in LAZY_MODULES else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyModuleLoader(spec.loader)
        return spec


def install_lazy_finder() -> None:
    if LazyModuleFinder not in sys.meta_path:
        sys.meta_path.insert(0, LazyModuleFinder)
