"""Sending one webhook to one destination. The HTTP client lives here and nowhere else."""
