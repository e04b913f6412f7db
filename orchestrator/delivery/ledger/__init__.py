"""The delivery records: what was sent where, what waits, what is dead."""
