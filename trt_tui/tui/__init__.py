"""The terminal application: draws a `trt_tui.session.session.Session` and passes key presses on to it."""
