"""What costs nothing at run time: a normalisation as its operator, scaled channels, a corrected bias."""

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.offers import made, no_correction, no_rewrite, no_smoothing, out_of_the_file
from trt_tui.jobs.events import FREE_KEY
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.keys import key
from trt_tui.tui.known import headline
from trt_tui.tui.screens.dialogs import Item, Picker


class FreeMoves(Controller):
    """See the module's docstring."""

    def no_free_move(self) -> str:
        """Why there is nothing to choose."""
        if reason := self.nothing_to_ask() or self.no_groups():
            return reason
        group = self.desk.current_group
        if group is None:
            return "choose a single group: what is free depends on what it computes"
        outline, config = self.session.opened.outline, self.session.config
        if made(outline, config, group):
            return ""
        reasons = {"as operator": no_rewrite(outline, group), "SmoothQuant": no_smoothing(outline, group),
                   "bias": no_correction(outline, group, out_of_the_file(config, [group]))}
        return "; ".join(f"{what}: {why}" for what, why in reasons.items()) if all(reasons.values()) else ""

    @action(label="free", help="Free at run time: LayerNorm as operator, SmoothQuant, bias correction",
            group="Change", disabled=no_free_move, footer=51)
    def free(self) -> None:
        """Asks which of them."""
        group = self.desk.current_group
        if group is None:
            return
        session, config = self.session, self.session.config
        outline = session.opened.outline
        items: list[Item] = []
        for kind, target in made(outline, config, group):
            move = config.moves[kind.kind, target]
            where = f" of {target}" if target != group.name else ""
            items.append(Item(str(len(items) + 1), f"take back: {move.label}{where}", config.without(kind, [target])))
        measured = session.results.ways_out.get((group.name, config))
        for option in measured or ():
            if option.key == FREE_KEY:
                figure = headline(session, option.verdict)[0]
                items.append(Item(str(len(items) + 1), f"{option.label:<24} {figure}", option.config))
        if measured is None:
            session.look_at(group)
            items.append(Item("", "what they give is being measured", "",
                              f"close this, and press {key('free')} again in a moment"))
        for label, why in (("operator", no_rewrite(outline, group)), ("SmoothQuant", no_smoothing(outline, group)),
                           ("bias correction", no_correction(outline, group, out_of_the_file(config, [group])))):
            if why:
                items.append(Item("", label, "", why))

        def chosen(wanted: PrecisionConfig | None) -> None:
            if wanted is not None:
                session.set_config(wanted, [group])
                self.desk.changed()

        self.desk.app.push_screen(Picker(f"Free at run time: {group.name}", items), chosen)
