"""Counting: in the memory of each process, written to the journal every second."""
