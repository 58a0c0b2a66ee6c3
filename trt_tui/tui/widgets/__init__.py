"""Textual widgets of the application, which draw lines of `trt_tui.tui.spans`."""
