"""Marks: single characters with a meaning, before names and values in the app. The glossary explains them."""

BAND_GLYPHS = "█▓▒░·"
BAD_GLYPH = "!"
UNKNOWN_GLYPH = "?"
RAISED_MARK = "↑"
REDUCED_MARK = "↓"
DIVERGENCE_MARK = "↯"
"""The mark of the first row at which the engine is worse than its simulation by more than `UNEXPLAINED_GAP_DB`."""

RANGE_MARKS = {"entropy": "e", "percentile": "p", "mse": "m", "minmax": "x"}
"""The letter after a row's precision for a range method other than that of the calibration."""
USER_RANGE_MARK, KEPT_MARK, OTHER_CHANGE_MARK = "u", "k", "+"
"""The letters after a row's precision for a range set by hand, for a keep rule, and for any other change."""
BARRIER_MARK = "┤"
"""The mark of a row with a fusion barrier behind its result."""
SAME_VALUE_MARK, MARGIN_MARK = "≈", "±"
OTHER_PRECISION_MARK = "≠"
OPENED_MARK, CLOSED_MARK, CURSOR_MARK = "▾", "▸", ">"
RUNNING_MARK = "⋯"
CHOSEN_MARK = "●"
"""The mark of the current entry in a list of choices."""

SHARE_BAND_LIMITS = (0.20, 0.05, 0.01, 0.002)
BAND_LIMITS_DB = (10.0, 20.0, 30.0, 40.0)
