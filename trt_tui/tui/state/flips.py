"""What the judged figure becomes when space is pressed on a row, as far as that is known; in the target's own unit."""

from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.core.measure.comparison import Errors, OutputErrors, Verdict
from trt_tui.core.network.layers import Group
from trt_tui.jobs.requests import TryFlips
from trt_tui.session.session import Session
from trt_tui.tui.known import config_met, headline, met, verdict_outcome
from trt_tui.words import decibels


@dataclass(frozen=True)
class Flip:
    """The figure with one row flipped.

    Attributes:
        outcome: FAIL or FAIL? where it misses the target, PASS or PASS? where it meets one that the config misses;
            ``on 8`` where it is on so few samples, which settles nothing.
        margin: By how much the figure is better than the target's bound; None where that is not known.
        partial: The figure is on fewer samples than are to be judged.
    """

    figure: str = ""
    outcome: str = ""
    figure_style: str = ""
    outcome_style: str = ""
    margin: float | None = None
    partial: bool = False


def flip_of(session: Session, groups: Sequence[Group]) -> Flip:
    """The figure of the config with a row or a scope flipped, by its groups: of a what-if that was measured, else of
    the row's share; nothing for a scope that is too large to be measured."""
    config = session.config
    if len(groups) > TryFlips.LARGEST_SCOPE:
        return Flip()
    changed = config.toggled(groups)
    if changed == config:
        return Flip()
    verdict, now = session.results.of(changed).verdict, config_met(session, config)
    if verdict is not None:
        figure, style = headline(session, verdict)
        figure = figure.removesuffix(" dB")
        margin = session.target.margin(verdict) if session.target is not None else None
        if verdict.samples < verdict.total:
            return Flip(figure, f"on {verdict.samples}", style, "dim", margin, True)
        then = met(session, verdict)
        if then is None or then and now is not False:
            return Flip(figure, "", style, margin=margin)
        told = "good" if then else "dim" if now is False else "bad"
        return Flip(figure, verdict_outcome(session, verdict), style, told, margin)
    return _by_share(session, groups[0]) if len(groups) == 1 else Flip()


def _by_share(session: Session, group: Group) -> Flip:
    """What measuring the share of a row that is not raised told of the worst output's SQNR."""
    target, share = session.target, session.results.of(session.config).shares.get(group.name)
    if share is None or share.kept_db is None or target is None or target.kind != "sqnr" or target.output is not None:
        return Flip()
    figure, now = decibels(share.kept_db), config_met(session, session.config)
    margin = share.kept_db - target.value
    if session.data is not None and share.samples < session.data.whatif:
        return Flip(figure, f"on {share.samples}", "", "dim", margin, True)
    accuracy = Verdict({"": OutputErrors(Errors(share.kept_db))}, samples=share.samples, total=share.samples)
    then, told = met(session, accuracy), verdict_outcome(session, accuracy)
    if then is False:
        return Flip(figure, told, "", "dim" if now is False else "bad", margin)
    return Flip(figure, told if now is False else "", "", "good", margin)


def flip_title(name: str, width: int) -> str:
    """The title of the column, given that of the figure."""
    texts = (f"{name} if flipped", f"{name} flipped", "if flipped")
    return next((text for text in texts if len(text) <= width), texts[-1])
