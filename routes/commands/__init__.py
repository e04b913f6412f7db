"""Commands that are a page of their own; the others stand in routes/command_line.py."""
