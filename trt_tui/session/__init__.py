"""The session that the app and the commands share: state, configs with undo, results, saved sessions, and pending
requests."""
