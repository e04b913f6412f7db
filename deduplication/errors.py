"""Every error that the deduplication layer raises."""


class DeduplicationError(Exception):
    """Something in the deduplication layer went wrong."""


class StoreUnavailable(DeduplicationError):
    """The journal cannot answer for now; asking again later may work."""


class NoAnswer(StoreUnavailable):
    """Redis did not answer in time, or refused the connection. What was asked may have been done."""


class NotNow(StoreUnavailable):
    """Redis answered that it grants nothing now: a new era has begun, or the request came too late."""


class NoRoom(StoreUnavailable):
    """What is to be sent later cannot be kept: no more payloads are taken, here or on Redis, until some have gone."""


class StoreMisconfigured(DeduplicationError):
    """The journal refuses what we ask of it: a bug or a wrong setting that waiting will not cure."""
