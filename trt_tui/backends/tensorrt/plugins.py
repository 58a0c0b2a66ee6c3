"""The loading of plugin libraries into TensorRT's registry."""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

from trt_tui.errors import InputError
from trt_tui.files.reading import check_regular_file

_CREATOR_SYMBOLS = ("getPluginCreators", "getCreators")
"""The symbols of plugin libraries whose creators TensorRT registers on request. Other libraries register their creators
when they are loaded."""

_loaded_paths: set[str] = set()
"""The absolute paths of the libraries whose creators are registered in this process. TensorRT refuses to register them
again."""


def load_plugins(trt: Any, backend_title: str, paths: Sequence[str]) -> None:
    """Loads plugin libraries and registers their creators in TensorRT (`IPluginRegistry.load_library`, from 8.6 on).

    A library that registers its creators when it is loaded is not registered again, because TensorRT refuses that.

    The code of the libraries runs in this process. Only the background process calls this function, and only with
    libraries that the user has named.

    Args:
        backend_title: The name and version of the backend.

    Raises:
        InputError: A library cannot be loaded or registered. The message names the library.
    """
    registry = trt.get_plugin_registry()
    for path in paths:
        check_regular_file(path)
        absolute_path = os.path.abspath(path)
        creator_count = _count_creators(registry)
        try:
            library = ctypes.CDLL(absolute_path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise InputError(f"--plugins {path} does not load", str(error),
                             f"Build it for {backend_title}; ldd {path} lists the libraries that it misses.") from None
        if (absolute_path in _loaded_paths or _count_creators(registry) > creator_count
                or not any(hasattr(library, symbol) for symbol in _CREATOR_SYMBOLS)):
            _loaded_paths.add(absolute_path)
            continue
        try:
            handle = registry.load_library(absolute_path)
        except Exception as error:
            raise _plugin_error(backend_title, path, str(error)) from None
        if handle is None:
            raise _plugin_error(backend_title, path, "its registry accepts nothing from it")
        _loaded_paths.add(absolute_path)


def _count_creators(registry: Any) -> int:
    """Returns the number of registered creators. Release 10 introduced the list of creators of all interfaces."""
    names = ("all_creators", "plugin_creator_list")
    return max((len(getattr(registry, name)) for name in names if hasattr(registry, name)), default=0)


def _plugin_error(backend_title: str, path: str, cause: str) -> InputError:
    return InputError(f"{backend_title} refuses the plugins of {path}", cause, f"Build it for {backend_title}.")
