"""The configs of a session with undo and redo, and the names of the configs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError


class ConfigHistory:
    """The configs of a session with undo and redo.

    An undo never loses ``current``; only a new change after an undo does.
    """

    def __init__(self, initial_config: PrecisionConfig) -> None:
        self._past: list[PrecisionConfig] = []
        self._future: list[PrecisionConfig] = []
        self.current = initial_config

    def push_config(self, config: PrecisionConfig) -> bool:
        """Makes a config the current config. Returns True if its decisions differ from those of the last config.

        If they do not differ, no undo step is added, and only the reasons are replaced.
        """
        if config == self.current:
            self.current = config
            return False
        self._past.append(self.current)
        self._future.clear()
        self.current = config
        return True

    def undo(self) -> bool:
        """Restores the previous config. Returns True if there was a previous config."""
        if not self._past:
            return False
        self._future.append(self.current)
        self.current = self._past.pop()
        return True

    def redo(self) -> bool:
        """Restores the config that was undone last. Returns True if there was an undone config."""
        if not self._future:
            return False
        self._past.append(self.current)
        self.current = self._future.pop()
        return True

    def map_configs(self, change_config: Callable[[PrecisionConfig], PrecisionConfig]) -> None:
        """Changes every config of the history in place, without an undo step."""
        self._past, self._future = [change_config(config)
                                    for config in self._past], [change_config(config) for config in self._future]
        self.current = change_config(self.current)

    def snapshot(self) -> tuple[list[PrecisionConfig], PrecisionConfig, list[PrecisionConfig]]:
        """Returns the past configs (oldest first), the current config, and the undone configs (the next redo last)."""
        return list(self._past), self.current, list(self._future)

    @classmethod
    def from_snapshot(cls, past: list[PrecisionConfig], current: PrecisionConfig,
                      future: list[PrecisionConfig]) -> ConfigHistory:
        """Builds a history from the result of `snapshot`."""
        history = cls(current)
        history._past, history._future = list(past), list(future)
        return history

    @property
    def can_undo(self) -> bool:
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        return bool(self._future)


@dataclass(frozen=True)
class ConfigNote:
    """The user's note about a config.

    Attributes:
        comment: The user's comment.
        pinned: True if the config is pinned to the top of the list. A pinned config is always saved.
    """

    comment: str = ""
    pinned: bool = False


MAX_NAME_LENGTH = 24
"""The maximum number of characters in the name of a config."""


class ConfigNames(dict[PrecisionConfig, str]):
    """The names of the configs in the order of their first use: c0, c1, ..., or the user's names.

    Attributes:
        notes: The user's notes about configs.
    """

    def __init__(self, names: Iterable[tuple[PrecisionConfig, str]] = (),
                 notes: Mapping[PrecisionConfig, ConfigNote] | None = None) -> None:
        super().__init__(names)
        self.notes = dict(notes or {})

    def rename_config(self, config: PrecisionConfig, name: str) -> None:
        """Gives a config a name that the user has chosen.

        Raises:
            InputError: The name is empty, too long, or the name of another config.
        """
        if not name or len(name) > MAX_NAME_LENGTH or "\n" in name:
            raise InputError(f"{name!r} is not a valid name of a config",
                             f"a name has 1 to {MAX_NAME_LENGTH} characters in one line", "Type a shorter name.")
        if any(other_name == name and other_config != config for other_config, other_name in self.items()):
            raise InputError(f"another config is called {name}", "names are unique", "Type another name.")
        self[config] = name

    def set_config_comment(self, config: PrecisionConfig, comment: str) -> None:
        """Sets the comment of a config; "" removes it."""
        self.notes[config] = replace(self.notes.get(config, ConfigNote()), comment=comment)

    def toggle_config_pin(self, config: PrecisionConfig) -> bool:
        """Pins a config to the top of the list, or removes the pin. Returns True if the config is pinned afterwards."""
        note = self.notes.get(config, ConfigNote())
        self.notes[config] = replace(note, pinned=not note.pinned)
        return not note.pinned

    def list_configs_newest_first(self) -> list[tuple[PrecisionConfig, str]]:
        """Returns the configs with their names: first the pinned configs, then the others, each from newest to
        oldest."""
        newest = list(reversed(self.items()))
        return sorted(newest, key=lambda named_config: not self.notes.get(named_config[0], ConfigNote()).pinned)

    def copy(self) -> ConfigNames:
        return ConfigNames(self.items(), self.notes)

    def get_config_name(self, config: PrecisionConfig) -> str:
        """Returns the name of a config. A config without a name gets the next free name."""
        if config not in self:
            number, used_names = len(self), set(self.values())
            while f"c{number}" in used_names:
                number += 1
            self[config] = f"c{number}"
        return self[config]
