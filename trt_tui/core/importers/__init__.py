"""Importers, which convert the commands, scripts and files of trtexec, Polygraphy and ModelOpt into a precision config."""
