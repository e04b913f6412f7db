"""The HTTP surface: authenticates, parses providers' requests, and turns outcomes into answers."""
