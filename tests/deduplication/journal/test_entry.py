from __future__ import annotations

import re
from dataclasses import replace

import pytest

from deduplication.journal.codec import flat_delivery, read_delivery
from deduplication.journal.entry import Delivery, changed, new_entry_id


def test_an_entry_id_is_twelve_letters_and_digits_that_never_repeat() -> None:
    ids = {new_entry_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[a-z2-7]{12}", id_) for id_ in ids)


def test_a_delivery_is_read_back_with_the_server_and_since_when_its_destination_is_missing() -> None:
    delivery = Delivery("crm", "msg_1", missing_ms=5, server="server a")
    assert read_delivery(flat_delivery(delivery)) == delivery


def test_what_is_changed_is_a_copy_and_takes_no_field_that_there_is_not() -> None:
    delivery = Delivery("crm", "msg_1", tries=1)
    assert changed(delivery, tries=2, server="server a") == replace(delivery, tries=2, server="server a")
    assert delivery.tries == 1
    with pytest.raises(TypeError, match="no such fields: trys"):
        changed(delivery, trys=2)
