"""Configs with undo and redo, and what they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError


class ConfigHistory:
    """Configs with undo and redo. ``current`` is never lost by an undo, only by a new change after one."""

    def __init__(self, initial_config: PrecisionConfig) -> None:
        self._past: list[PrecisionConfig] = []
        self._future: list[PrecisionConfig] = []
        self.current = initial_config

    def push_config(self, config: PrecisionConfig) -> bool:
        """Makes a config current; returns whether it decides anything differently from the last one.

        If it does not, there is no step to undo: only the reasons are replaced.
        """
        if config == self.current:
            self.current = config
            return False
        self._past.append(self.current)
        self._future.clear()
        self.current = config
        return True

    def undo(self) -> bool:
        """Goes back to the config before; returns whether there was one."""
        if not self._past:
            return False
        self._future.append(self.current)
        self.current = self._past.pop()
        return True

    def redo(self) -> bool:
        """Restores what was undone last; returns whether there was anything."""
        if not self._future:
            return False
        self._past.append(self.current)
        self.current = self._future.pop()
        return True

    def map_configs(self, change_config: Callable[[PrecisionConfig], PrecisionConfig]) -> None:
        """Changes every config in place, without a step that could be undone."""
        self._past, self._future = [change_config(config)
                                    for config in self._past], [change_config(config) for config in self._future]
        self.current = change_config(self.current)

    def snapshot(self) -> tuple[list[PrecisionConfig], PrecisionConfig, list[PrecisionConfig]]:
        """Past (oldest first), current, and future (the next redo last)."""
        return list(self._past), self.current, list(self._future)

    @classmethod
    def from_snapshot(cls, past: list[PrecisionConfig], current: PrecisionConfig,
                      future: list[PrecisionConfig]) -> ConfigHistory:
        """A history from what `snapshot` returned."""
        history = cls(current)
        history._past, history._future = list(past), list(future)
        return history

    @property
    def can_undo(self) -> bool:
        """Whether there is a config before."""
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        """Whether anything was undone."""
        return bool(self._future)


@dataclass(frozen=True)
class ConfigNote:
    """What a user has said of a config: a comment, and whether it is pinned to the top of the list and kept."""

    comment: str = ""
    pinned: bool = False


MAX_NAME_LENGTH = 24
"""Characters of a config's name at most."""


class ConfigNames(dict[PrecisionConfig, str]):
    """What configs are called, in the order they were first seen: c0, c1, ..., or as the user has named them.

    Attributes:
        notes: What the user has said of some of them.
    """

    def __init__(self, names: Iterable[tuple[PrecisionConfig, str]] = (),
                 notes: Mapping[PrecisionConfig, ConfigNote] | None = None) -> None:
        super().__init__(names)
        self.notes = dict(notes or {})

    def rename_config(self, config: PrecisionConfig, name: str) -> None:
        """Gives a config a name of its own.

        Raises:
            InputError: it is empty, too long, or another one's.
        """
        if not name or len(name) > MAX_NAME_LENGTH or "\n" in name:
            raise InputError(f"{name!r} is not a valid name of a config",
                             f"a name has 1 to {MAX_NAME_LENGTH} characters in one line", "Type a shorter name.")
        if any(other_name == name and other_config != config for other_config, other_name in self.items()):
            raise InputError(f"another config is called {name}", "names are unique", "Type another name.")
        self[config] = name

    def set_config_comment(self, config: PrecisionConfig, comment: str) -> None:
        """Comments on a config; "" takes the comment back."""
        self.notes[config] = replace(self.notes.get(config, ConfigNote()), comment=comment)

    def toggle_config_pin(self, config: PrecisionConfig) -> bool:
        """Pins a config, or no longer; returns whether it is pinned now."""
        note = self.notes.get(config, ConfigNote())
        self.notes[config] = replace(note, pinned=not note.pinned)
        return not note.pinned

    def list_configs_newest_first(self) -> list[tuple[PrecisionConfig, str]]:
        """The pinned ones, then the others, each with its name."""
        newest = list(reversed(self.items()))
        return sorted(newest, key=lambda named_config: not self.notes.get(named_config[0], ConfigNote()).pinned)

    def copy(self) -> ConfigNames:
        """A copy that goes its own way."""
        return ConfigNames(self.items(), self.notes)

    def get_config_name(self, config: PrecisionConfig) -> str:
        """The name of a config; one that has none gets the next that is free."""
        if config not in self:
            number, used_names = len(self), set(self.values())
            while f"c{number}" in used_names:
                number += 1
            self[config] = f"c{number}"
        return self[config]
