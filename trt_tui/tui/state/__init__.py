"""What the screens show, as plain data: rows, figures, columns and lines of text. Nothing here knows Textual."""
