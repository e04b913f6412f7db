"""Posts and media, scenario by scenario."""

import logging
from typing import Any
from unittest.mock import Mock

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.coordinator import Coordinator
from deduplication.reservations import Batch, Reservations, Reserved, Skipped, compute_post_key
from tests.deduplication.conftest import ON_REDIS, Bench
from tests.deduplication.journal.world import Email, claimed, stored

LEASE_MS = 60_000


def reservations(coordinator: Coordinator) -> Reservations:
    return Reservations(coordinator, LEASE_MS)


def reserved(outcome: Reserved | Skipped) -> Reserved:
    assert isinstance(outcome, Reserved), outcome
    return outcome


def skipped(outcome: Reserved | Skipped) -> Skipped:
    assert isinstance(outcome, Skipped), outcome
    return outcome


@pytest.mark.parametrize(
    ("post", "key"),
    [
        ({"name": "t3_a", "id": "a", "url": "https://x.example"}, "t3_a"),
        ({"id": 42, "permalink": "/r/a"}, "42"),
        ({"permalink": "/r/a/1/?x=1#y", "url": "https://x.example"}, "/r/a/1/"),
        ({"url": "https://x.example/a?b=1#c"}, "https://x.example/a"),
        ({"title": "T", "created_utc": 5}, "T::5"),
        ({"title": "T"}, ""),
        ({"name": " ", "id": None}, ""),
    ],
)
def test_the_post_key_is_the_first_present(post: dict[str, Any], key: str) -> None:
    assert compute_post_key(post) == key


@pytest.mark.parametrize(("publishes", "state"), [(False, "pending"), (True, "0")])
def test_known_posts_are_skipped(bench: Bench, caplog: pytest.LogCaptureFixture, publishes: bool, state: str) -> None:
    caplog.set_level(logging.INFO)
    mine = reserved(reservations(bench.one).reserve("p1"))
    assert not publishes or reservations(bench.one).published(mine)
    assert reservations(bench.other).state_of("p1") == state
    again = skipped(reservations(bench.other).reserve("p1"))
    assert (again.name.value, again.state, again.settled) == ("p1", state, publishes)
    assert f"post:p1 is {state}" in caplog.text


def test_a_post_that_cannot_be_noted_is_not_said_to_be_published(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = reserved(reservations(bench.one).reserve("p1"))
    with monkeypatch.context() as patch:
        patch.setattr(bench.one.journal, "step", Mock(side_effect=StoreUnavailable("the disk is full")))
        assert reservations(bench.one).published(mine) is (bench.redis is not None), "Redis has accepted it"
    bench.one.tend()
    assert reservations(bench.one).state_of("p1") == "0", "it is noted once the disk can be written"


def test_the_same_post_twice_in_a_batch_is_skipped_without_asking(bench: Bench) -> None:
    batch = Batch()
    mine = reserved(reservations(bench.one).reserve("p1", batch=batch))
    reservations(bench.one).failed(mine)
    assert skipped(reservations(bench.one).reserve("p1", batch=batch)).state == "seen in this batch"
    assert reservations(bench.one).state_of("p1") is None


def test_a_medium_seen_in_the_batch_marks_the_post_processed(bench: Bench) -> None:
    batch, mine = Batch(), reservations(bench.one)
    earlier = reserved(mine.reserve("p1", ["https://a.example/1?x=1"], batch))
    assert skipped(mine.reserve("p2", ["https://a.example/1/"], batch)).settled
    assert reservations(bench.other).state_of("p2") == "0"
    mine.failed(earlier)
    reserved(reservations(bench.other).reserve("p3", ["https://a.example/1"]))


def test_a_post_whose_medium_is_published_is_marked_processed(bench: Bench) -> None:
    mine = reserved(reservations(bench.one).reserve("p1", ["https://a.example/1"]))
    reservations(bench.one).published(mine)
    other = skipped(reservations(bench.other).reserve("p2", ["https://a.example/1#top"]))
    assert (other.name.value, other.state, other.settled) == ("https://a.example/1", "1", True)
    assert reservations(bench.one).state_of("p2") == "0"


def test_a_post_whose_medium_is_pending_elsewhere_waits(bench: Bench) -> None:
    mine = reserved(reservations(bench.one).reserve("p1", ["https://a.example/1"]))
    assert not skipped(reservations(bench.other).reserve("p2", ["https://a.example/1"])).settled
    assert reservations(bench.one).failed(mine)
    reserved(reservations(bench.other).reserve("p2", ["https://a.example/1"]))
    reserved(reservations(bench.other).reserve("p1"))


def test_a_crashed_reservation_is_taken_over_once_its_lease_is_gone(bench: Bench) -> None:
    crashed = reserved(reservations(bench.one).reserve("p1", ["https://a.example/1"]))
    skipped(reservations(bench.other).reserve("p1", ["https://a.example/1"]))
    bench.advance(LEASE_MS + 1)
    heir = reserved(reservations(bench.other).reserve("p1", ["https://a.example/2"]))
    assert reservations(bench.one).published(crashed) is False
    assert reservations(bench.other).published(heir)
    reserved(reservations(bench.other).reserve("p2", ["https://a.example/1"]))


@ON_REDIS
def test_redis_shows_the_states_as_their_users_know_them(bench: Bench) -> None:
    client, mine = bench.client, reservations(bench.one)
    first = reserved(mine.reserve("p1", ["https://a.example/1"]))
    assert (client.get("post:p1"), client.get("media:https://a.example/1")) == ("pending", "pending")
    mine.failed(first, retries_left=2)
    assert (client.get("post:p1"), client.get("media:https://a.example/1")) == ("2", None)
    mine.published(reserved(mine.reserve("p1", ["https://a.example/1"])))
    assert (client.get("post:p1"), client.get("media:https://a.example/1")) == ("0", "1")
    for key in ("post:p1", "media:https://a.example/1"):
        assert 604_700 < client.ttl(key) <= 604_800
    client.set("post:by another program", "0")
    assert mine.state_of("by another program") == "0"
    assert skipped(mine.reserve("by another program")).settled


def test_a_post_that_was_given_up_is_through_and_its_medium_is_free(bench: Bench) -> None:
    mine = reserved(reservations(bench.one).reserve("p1", ["https://a.example/1"]))
    assert reservations(bench.one).failed(mine, retries_left=0)
    assert reservations(bench.other).state_of("p1") == "0"
    reserved(reservations(bench.other).reserve("p2", ["https://a.example/1"]))


def test_the_retries_left_feed_the_next_try_and_outlive_one_that_was_skipped(bench: Bench) -> None:
    first = reserved(reservations(bench.one).reserve("p1", ["https://a.example/1"]))
    assert first.retries_left is None
    reservations(bench.one).failed(first, retries_left=3)
    reserved(reservations(bench.other).reserve("p2", ["https://a.example/1"]))
    skipped(reservations(bench.one).reserve("p1", ["https://a.example/1"]))
    assert reservations(bench.other).state_of("p1") == "3"
    assert reserved(reservations(bench.other).reserve("p1")).retries_left == 3


def test_of_several_media_those_that_are_published_are_left_out(bench: Bench) -> None:
    reservations(bench.one).published(reserved(reservations(bench.one).reserve("p1", ["https://a.example/1"])))
    both = ["https://a.example/1", "https://a.example/2"]
    mine = reserved(reservations(bench.one).reserve("p2", both))
    assert [name.value for name in mine.media] == ["https://a.example/2"]
    reservations(bench.one).published(mine)
    assert skipped(reservations(bench.other).reserve("p3", both)).settled


def test_a_post_whose_medium_waits_with_an_email_waits_too(bench: Bench) -> None:
    """The email may still end dead, and nobody would take up a post that was called processed."""
    stored(bench.first, claimed(bench.first, Email(media=("https://a.example/1",))))
    post = skipped(reservations(bench.other).reserve("p1", ["https://a.example/1"]))
    assert (post.state, post.settled) == ("pending", False)
    assert reservations(bench.other).state_of("p1") is None
