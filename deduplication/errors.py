"""Every error that the deduplication layer raises."""


class DeduplicationError(Exception):
    """Something in the deduplication layer went wrong."""


class StoreUnavailable(DeduplicationError):
    """The journal cannot answer for now; asking again later may work."""


class StoreMisconfigured(DeduplicationError):
    """The journal refuses what we ask of it: a bug or a wrong setting that waiting will not cure."""


class ConnectionDropped(StoreUnavailable):
    """The connection broke; whether it did what we asked, only asking again by the same owner can tell."""
