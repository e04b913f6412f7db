"""One entry for each item received; its names are the index, its deliveries are inside (docs/architecture-old.md)."""
