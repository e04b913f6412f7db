"""One file for each provider: from its request to an Email. No Flask here."""
