"""What the whole fleet knows of one destination, beside the deliveries that wait for it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DestinationState:
    """Whether it is paused, since when, why and by whom; and when it last became well again (0: never).

    The two are told apart when states meet: of the decisions the later one counts, of a tie the pause, and of the times
    at which it was well the latest. So machines may tell each other what they know in any order, and twice.
    """

    is_paused: bool = False
    since_ms: int = 0
    reason: str = ""
    by: str = ""
    well_since_ms: int = 0

    @property
    def resumed_ms(self) -> int:
        """When it was last resumed; 0 while it is paused, or never was."""
        return 0 if self.is_paused else self.since_ms

    def with_news(self, told: DestinationState) -> DestinationState:
        is_later = (told.since_ms, told.is_paused) > (self.since_ms, self.is_paused)
        return replace(told if is_later else self, well_since_ms=max(self.well_since_ms, told.well_since_ms))
