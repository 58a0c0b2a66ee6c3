"""What the app and the commands share: what is known, configs with undo, results, saving, and what is asked for."""
