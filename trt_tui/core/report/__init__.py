"""What was measured, as columns of tables and as records: commands, files and the app read them."""
