"""What the app and the commands share: configs with undo, results, saving."""
