"""Picks the route of an email, claims it, delivers it and settles it. Knows destinations, knows no Flask."""
