"""Counting: what happens is counted in files of this machine, and kept by the minute and the hour."""
