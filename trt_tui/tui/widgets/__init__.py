"""Widgets of the application; each draws lines of `trt_tui.tui.spans`."""
