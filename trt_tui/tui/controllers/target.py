"""The action that changes the accuracy target."""

from trt_tui.errors import TrtTuiError
from trt_tui.session.session import Session
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.screens.dialogs import Prompt
from trt_tui.tui.state.summary import outcome_reason_lines


def target_error_text(session: Session, text: str) -> str:
    """Returns the error in a typed target; "" if the target is valid."""
    try:
        session.read_targets(text)
    except TrtTuiError as error:
        return f"{error.cause.rstrip('.')}. {error.next_step}"
    return ""


class TargetController(Controller):
    """The controller of the dialog that changes the accuracy target of the session."""

    @register_action(label="target", help="Change the target that runs must meet", group="Work",
                     disabled_reason=Controller.network_not_open_reason)
    def target(self) -> None:
        session = self.session

        def set_typed_target(text: str) -> None:
            session.set_target(text)
            self.presenter.draw_all()

        note = "sqnr>=20 (dB, worst output), cosine>=0.999, agreement>=0.99"
        if session.results.reference_metric:
            note += ", metric>=base-0.01, metric>=base-1%"
        if len(session.results.reference_metric) > 1:
            part = list(session.results.reference_metric)[1]
            note += f", metric[{part}]>=base-1%, metric[*]>=base-2%"
        note = ". ".join((*outcome_reason_lines(session), note))
        text = session.targets_text or "sqnr>=20"
        self.open_dialog(Prompt("Target", text, note, lambda text: target_error_text(session, text)), set_typed_target)
