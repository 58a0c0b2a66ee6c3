"""Configs of other tools: what was told to trtexec, Polygraphy and ModelOpt, as a precision config."""
