"""The base class of controllers: registration of actions and event handlers, and common reasons for disabled actions.
"""

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
    """An action with the controller method that performs it and the method that returns why it is disabled.

    `register_action` creates the handler. The action gets its id from the name of the decorated method.
    """

    def __init__(self, make_action: Callable[[str], Action], perform: Callable[[ControllerT], None],
                 disabled_reason: Callable[[ControllerT], str]) -> None:
        self._make_action, self._perform, self._disabled_reason = make_action, perform, disabled_reason

    def __set_name__(self, owner: type[ControllerT], name: str) -> None:
        self.action = self._make_action(name)

    def bind_to_controller(self, controller: ControllerT) -> BoundAction:
        """Returns the action with its two methods bound to a controller."""
        return BoundAction(self.action, partial(self._perform, controller), partial(self._disabled_reason, controller))


class Controller:
    """A part of the main screen's behaviour: the actions and event handlers of one area, such as ranges or export.

    Attributes:
        action_handlers: The actions of the class, in the order of their methods.
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
        return [handler.bind_to_controller(self) for handler in self.action_handlers]

    def event_handlers(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Returns the methods that handle events of the background process, by type of event.

        The session has applied an event before its handlers run, and the screen is drawn shortly after.
        """
        return {}

    def open_dialog(self, dialog: OverlayScreen, handle_answer: Callable[[Any], None] = lambda answer: None) -> None:
        """Shows a dialog or a page, and passes its answer to a function. A dialog closed without an answer calls
        nothing."""
        self.presenter.app.push_screen(dialog, lambda answer: None if answer is None else handle_answer(answer))

    # -- reasons ------------------------------------------------------------------------------------------------

    def empty_disabled_reason(self) -> str:
        """Returns "", for actions that are always possible."""
        return ""

    def network_not_open_reason(self) -> str:
        """Returns the reason why an action that needs an open network is disabled; "" if it is enabled."""
        return "" if self.layer_list.is_network_open else "the network is not open yet"

    def no_chosen_groups_reason(self) -> str:
        """Returns the reason why an action that changes the fusion groups of the selected row is disabled; "" if it is
        enabled."""
        if reason := self.network_not_open_reason():
            return reason
        if self.presenter.list_chosen_groups():
            return ""
        line = self.presenter.current_row
        row = line.row if line is not None else None
        return (row.refusal_reason if isinstance(row, UngroupedRow) else "") or "this row has no selectable precision"

    def no_chosen_row_reason(self) -> str:
        """Returns the reason why an action that needs a selected row is disabled; "" if it is enabled."""
        return self.network_not_open_reason() or ("" if self.presenter.current_row is not None else "no row is chosen")

    def missing_samples_reason(self) -> str:
        """Returns the reason why an action that executes the network on samples is disabled; "" if it is enabled."""
        if reason := self.network_not_open_reason():
            return reason
        return "no samples: reopen with --data" if self.session.data_summary is None else ""

    def build_disabled_reason(self) -> str:
        """Returns the reason why an action that builds an engine is disabled; "" if it is enabled."""
        if reason := self.missing_samples_reason():
            return reason
        if self.session.is_searching and self.session.builder is not None:
            return f"a search is going on, which builds too: {shown_key('stop')} stops it"
        return f"a build is going on: {shown_key('stop')} stops it" if self.session.is_building else ""


class ActionDecorator(Protocol):
    """The type of the decorator that `register_action` returns."""

    def __call__(self, perform: Callable[[ControllerT], None]) -> ActionHandler[ControllerT]:
        ...


def register_action(*, label: str, help: str, group: str,
                    disabled_reason: Callable[[Any], str] = Controller.empty_disabled_reason,
                    footer: int | None = None) -> ActionDecorator:
    """Returns a decorator that registers a controller method as an action. The name of the method becomes the action
    id.

    `trt_tui.tui.keys.KEYS` contains the keys of the action, and `Action` describes the other arguments.

    Args:
        disabled_reason: The method that returns why the action is impossible now; "" if it is possible.
    """
    def make_action(name: str) -> Action:
        return Action(name, label, help, group, footer)

    return lambda perform: ActionHandler(make_action, perform, disabled_reason)
