"""Every error that the deduplication layer raises."""


class DeduplicationError(Exception):
    """Something in the deduplication layer went wrong."""


class StoreUnavailable(DeduplicationError):
    """The store cannot answer for now; asking again later may work."""


class StoreMisconfigured(DeduplicationError):
    """The store refuses what we ask of it: a bug or a wrong setting that waiting will not cure."""


class ConnectionDropped(StoreUnavailable):
    """The connection broke; whether the store did what we asked, only asking again by the same owner can tell."""
