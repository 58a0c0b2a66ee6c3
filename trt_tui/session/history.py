"""The states of a session with undo and redo, and the names of its configs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trt_tui.core.measure.results import RunKind
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError


def join_target_texts(targets: Iterable[str]) -> str:
    """Returns targets as one text, which depends neither on their order nor on how a target is written."""
    return _TARGETS_SEPARATOR.join(sorted(replace(parse_target(target), source="").text for target in targets))


_TARGETS_SEPARATOR = " and "


def imply_targets(targets: Iterable[str], weaker_targets: str) -> bool:
    """Returns True if a run that meets some targets also meets others.

    Args:
        weaker_targets: The other targets, from `join_target_texts`.
    """
    try:
        weaker = [*map(parse_target, weaker_targets.split(_TARGETS_SEPARATOR))]
    except InputError:  # the name of an output contains the separator
        return weaker_targets == join_target_texts(targets)
    stricter = [*map(parse_target, targets)]
    return all(any(target.is_as_strict_as(other) for target in stricter) for other in weaker)


@dataclass(frozen=True)
class SearchDoubt:
    """The reason for doubt that a search found in a config.

    Attributes:
        missed_runs: The runs that missed the targets; the simulated one on held-out samples. Empty if none did, but
            those of other configs were worse than simulated.
        is_from_file: True if a config file contains it, so that the samples of the search may be others.
    """

    text: str = ""
    missed_runs: frozenset[RunKind] = frozenset()
    is_from_file: bool = False


@dataclass(frozen=True)
class UserState:
    """Everything in a session that the user can change. Undo and redo restore such states.

    Two states are equal if their configs make the same decisions and the other fields are equal.

    Attributes:
        target_text: The targets as the user gave them; "" for the default target.
        filter_text: The filter of the rows; "" for no filter.
        chosen_names: The names that the user gave to configs.
        choice_reasons: The reasons of the search for the moves of ``config``, by group or tensor.
    """

    config: PrecisionConfig
    target_text: str = ""
    filter_text: str = ""
    chosen_names: Mapping[PrecisionConfig, str] = field(default_factory=dict)
    choice_reasons: Mapping[str, str] = field(default_factory=dict, compare=False)


class ChangeHistory:
    """The states of a session with undo and redo.

    A redo restores an undone state, until the user makes another change.

    Attributes:
        state: The current state.
    """

    def __init__(self, initial_config: PrecisionConfig, target_text: str = "") -> None:
        self._past: list[UserState] = []
        self._future: list[UserState] = []
        self.state = UserState(initial_config, target_text)

    @property
    def current_config(self) -> PrecisionConfig:
        """The config of the current state."""
        return self.state.config

    def change_fields(self, **changed_fields: Any) -> None:
        """Changes fields of the current state that the user did not change, without an undo step."""
        self.state = replace(self.state, **changed_fields)

    def push_config(self, config: PrecisionConfig) -> bool:
        """Makes a config the current one, as `push_state` does with a state in which only the config differs."""
        return self.push_state(replace(self.state, config=config))

    def push_state(self, state: UserState) -> bool:
        """Makes a state the current one. Returns True if it differs from the last state.

        If it does not differ, no undo step is added, and only the reasons are replaced.
        """
        is_changed = state != self.state
        if is_changed:
            self._past.append(self.state)
            self._future.clear()
        self.state = state
        return is_changed

    def undo(self) -> bool:
        """Restores the previous state. Returns True if there was a previous state."""
        return self._restore_last_state(self._past, self._future)

    def redo(self) -> bool:
        """Restores the state that was undone last. Returns True if there was an undone state."""
        return self._restore_last_state(self._future, self._past)

    def _restore_last_state(self, states: list[UserState], other_states: list[UserState]) -> bool:
        if not states:
            return False
        other_states.append(self.state)
        self.state = states.pop()
        return True

    def map_configs(self, change_config: Callable[[PrecisionConfig], PrecisionConfig]) -> None:
        """Changes every config of the history in place, without an undo step."""

        def change_state(state: UserState) -> UserState:
            return replace(
                state,
                config=change_config(state.config),
                chosen_names={change_config(config): name for config, name in state.chosen_names.items()},
            )

        self._past, self._future = list(map(change_state, self._past)), list(map(change_state, self._future))
        self.state = change_state(self.state)

    def snapshot(self) -> tuple[list[UserState], UserState, list[UserState]]:
        """Returns the past states (oldest first), the current state, and the undone states (the next redo last)."""
        return list(self._past), self.state, list(self._future)

    @classmethod
    def from_snapshot(cls, past: list[UserState], current: UserState, future: list[UserState]) -> ChangeHistory:
        """Builds a history from the result of `snapshot`."""
        history = cls(current.config)
        history._past, history.state, history._future = list(past), current, list(future)
        return history

    @property
    def can_undo(self) -> bool:
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        return bool(self._future)


MAX_NAME_LENGTH = 24
"""The maximum number of characters in the name of a config."""

_NUMBERED_NAME = re.compile(r"c\d+")
"""The names that the program gives to configs."""


class ConfigNames(dict[PrecisionConfig, str]):
    """The names of the configs in the order of their first use: c0, c1, ..., or the user's names.

    Attributes:
        chosen_names: The names that the user gave to configs.
        exported_configs: The configs that were exported for production.
        search_doubts: The reasons for doubt that searches found, by config and targets.
    """

    def __init__(
        self,
        names: Iterable[tuple[PrecisionConfig, str]] = (),
        exported_configs: Iterable[PrecisionConfig] = (),
        search_doubts: Mapping[tuple[PrecisionConfig, str], SearchDoubt] | None = None,
    ) -> None:
        super().__init__(names)
        self.exported_configs = set(exported_configs)
        self.search_doubts = dict(search_doubts or {})
        self.chosen_names = {config: name for config, name in self.items() if not _NUMBERED_NAME.fullmatch(name)}
        self._numbered_names: dict[PrecisionConfig, str] = {}

    def rename_config(self, config: PrecisionConfig, name: str) -> None:
        """Gives a config a name that the user has chosen.

        Raises:
            InputError: The name is empty, too long, or the name of another config.
        """
        if not name or len(name) > MAX_NAME_LENGTH or "\n" in name:
            raise InputError(
                f"{name!r} is not a valid name of a config",
                f"a name has 1 to {MAX_NAME_LENGTH} characters in one line",
                "Type another name.",
            )
        if any(other_name == name and other_config != config for other_config, other_name in self.items()):
            raise InputError(
                f"two configs cannot be called {name}", "another config has this name", "Type another name."
            )
        if self.get(config) != name:
            if config in self and config not in self.chosen_names:
                self._numbered_names[config] = self[config]
            self[config] = self.chosen_names[config] = name

    def find_numbered_name(self, config: PrecisionConfig) -> str:
        """Returns the name that the program gave to a config. The user may have given it another name since."""
        return self._numbered_names.get(config, self.get(config, ""))

    def restore_chosen_names(self, chosen_names: Mapping[PrecisionConfig, str]) -> None:
        """Replaces the names that the user gave to configs. Configs that lose such a name get their numbered name
        again.
        """
        renamed = self.chosen_names.keys() - chosen_names.keys()
        self.chosen_names = dict(chosen_names)
        self.update({**dict.fromkeys(renamed, ""), **chosen_names})
        for config in renamed:
            numbered_name = self._numbered_names.get(config, "")
            self[config] = numbered_name if numbered_name not in {"", *self.values()} else self._find_free_name()

    def list_configs_newest_first(self) -> list[tuple[PrecisionConfig, str]]:
        """Returns the configs with their names, from newest to oldest."""
        return list(reversed(self.items()))

    def copy(self) -> ConfigNames:
        names = ConfigNames(self.items(), self.exported_configs, self.search_doubts)
        names.chosen_names, names._numbered_names = dict(self.chosen_names), dict(self._numbered_names)
        return names

    def get_config_name(self, config: PrecisionConfig) -> str:
        """Returns the name of a config. A config without a name gets the next free name."""
        if config not in self:
            self[config] = self._find_free_name()
        return self[config]

    def _find_free_name(self) -> str:
        number, used_names = len(self), {*self.values(), *self._numbered_names.values()}
        while f"c{number}" in used_names:
            number += 1
        return f"c{number}"
