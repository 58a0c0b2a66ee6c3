"""The contents of the screens as plain data: rows, values, columns and lines of text. No module here imports Textual."""
