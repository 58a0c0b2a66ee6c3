"""The base of all controllers: actions beside their handlers and reasons, and the events that they handle."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from trt_tui.core.network.hierarchy import UngroupedRow
from trt_tui.jobs import events as ev
from trt_tui.tui.actions import Action, BoundAction
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import OverlayScreen

ControllerT = TypeVar("ControllerT", bound="Controller")


class ActionHandler(Generic[ControllerT]):
    """An action with the method that does it and the one that says why it cannot be done now; see `register_action`."""

    def __init__(self, make_action: Callable[[str], Action], perform: Callable[[ControllerT], None],
                 disabled_reason: Callable[[ControllerT], str]) -> None:
        self._make_action, self._perform, self._disabled_reason = make_action, perform, disabled_reason

    def __set_name__(self, owner: type[ControllerT], name: str) -> None:
        self.action = self._make_action(name)

    def bind_to_controller(self, controller: ControllerT) -> BoundAction:
        """The action, done by a controller."""
        return BoundAction(self.action, partial(self._perform, controller), partial(self._disabled_reason, controller))


class Controller:
    """One concern of the main screen.

    Attributes:
        action_handlers: Its actions, in the order of their methods.
    """

    action_handlers: ClassVar[tuple[ActionHandler[Any], ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.action_handlers = tuple(value for value in vars(cls).values() if isinstance(value, ActionHandler))

    def __init__(self, presenter: Presenter) -> None:
        self.presenter = presenter
        self.session = presenter.session
        self.layer_list = presenter.layer_list
        self.status = presenter.status

    def list_bound_actions(self) -> list[BoundAction]:
        """What it can do."""
        return [handler.bind_to_controller(self) for handler in self.action_handlers]

    def event_handlers(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Handlers by type of event; the session has applied the event before, and all is drawn soon after."""
        return {}

    def open_dialog(self, dialog: OverlayScreen, handle_answer: Callable[[Any], None] = lambda answer: None) -> None:
        """Shows a dialog or a page. Its answer is handled unless it is closed without one."""
        self.presenter.app.push_screen(dialog, lambda answer: None if answer is None else handle_answer(answer))

    # -- reasons ------------------------------------------------------------------------------------------------

    def empty_disabled_reason(self) -> str:
        """For actions that can always be done."""
        return ""

    def network_not_open_reason(self) -> str:
        """For actions on a network."""
        return "" if self.layer_list.is_network_open else "the network is not open yet"

    def no_chosen_groups_reason(self) -> str:
        """For actions on groups."""
        if reason := self.network_not_open_reason():
            return reason
        if self.presenter.list_chosen_groups():
            return ""
        line = self.presenter.current_row
        row = line.row if line is not None else None
        return (row.refusal_reason if isinstance(row, UngroupedRow) else "") or "this row has no selectable precision"

    def no_chosen_row_reason(self) -> str:
        """For actions on a row."""
        return self.network_not_open_reason() or ("" if self.presenter.current_row is not None else "no row is chosen")

    def missing_samples_reason(self) -> str:
        """For actions that run the network."""
        if reason := self.network_not_open_reason():
            return reason
        return "no samples: reopen with --data" if self.session.data_summary is None else ""

    def build_disabled_reason(self) -> str:
        """For actions that build."""
        if reason := self.missing_samples_reason():
            return reason
        if self.session.is_searching and self.session.builder is not None:
            return f"a search is going on, which builds too: {shown_key('stop')} stops it"
        return f"a build is going on: {shown_key('stop')} stops it" if self.session.is_building else ""


class ActionDecorator(Protocol):
    """What `register_action` returns: a decorator that names the action after the method below it."""

    def __call__(self, perform: Callable[[ControllerT], None]) -> ActionHandler[ControllerT]:
        """The method as the handler of its action."""


def register_action(*, label: str, help: str, group: str,
                    disabled_reason: Callable[[Any], str] = Controller.empty_disabled_reason,
                    footer: int | None = None) -> ActionDecorator:
    """Makes a method do the action of its name, whose keys stand in `trt_tui.tui.keys.KEYS`; see `Action`.

    Args:
        disabled_reason: The method that gives the reason why it cannot be done now, "" where it can.
    """
    def make_action(name: str) -> Action:
        return Action(name, label, help, group, footer)

    return lambda perform: ActionHandler(make_action, perform, disabled_reason)
