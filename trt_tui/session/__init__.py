"""What the app and the commands share: the state, configs with undo, results, saving, and the requests under way."""
