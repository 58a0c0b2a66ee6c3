"""The terminal application, which draws a `trt_tui.session.session.Session` and passes key presses to the session."""
