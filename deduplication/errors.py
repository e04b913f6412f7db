"""Every error that the deduplication layer raises."""


class DeduplicationError(Exception):
    """Something in the deduplication layer went wrong."""


class StoreUnavailable(DeduplicationError):
    """The journal cannot answer for now; asking again later may work."""


class NoRoom(StoreUnavailable):
    """What is to be sent later cannot be kept: no more payloads are taken, here or on Redis, until some have gone."""


class StoreMisconfigured(DeduplicationError):
    """The journal refuses what we ask of it: a bug or a wrong setting that waiting will not cure."""


class ConnectionDropped(StoreUnavailable):
    """The connection broke; whether it did what we asked, only asking again by the same owner can tell."""
