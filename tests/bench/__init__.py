"""make bench: what an email costs, against anchors measured in the same run. See __main__.py."""
