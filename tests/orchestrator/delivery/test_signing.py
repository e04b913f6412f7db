from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, timezone

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from orchestrator.delivery.signing import Signer, check_secret

OLD = "whsec_" + base64.b64encode(b"the old secret of 24 byt").decode()
NEW = "whsec_" + base64.b64encode(b"the new secret, of thirty-two b.").decode()
OTHER = "whsec_" + base64.b64encode(b"a secret nobody was told").decode()

# The example of the Standard Webhooks specification's own test vectors.
KNOWN_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KNOWN_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
KNOWN_MOMENT = datetime.fromtimestamp(1614265330, UTC)
KNOWN_BODY = '{"test": 2432232314}'
KNOWN_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def of_bytes(count: int) -> str:
    return base64.b64encode(bytes(range(count))).decode()


def signed(*secrets: str, body: str = "{}") -> dict[str, str]:
    return {"webhook-id": "msg_1", **Signer(secrets).headers("msg_1", datetime.now(UTC), body)}


def test_the_signature_is_that_of_the_published_example() -> None:
    headers = Signer([KNOWN_SECRET]).headers(KNOWN_ID, KNOWN_MOMENT, KNOWN_BODY)
    assert headers == {"webhook-timestamp": "1614265330", "webhook-signature": KNOWN_SIGNATURE}


@pytest.mark.parametrize("hours", [-8, 0, 5.5, 14])
def test_the_time_zone_of_the_moment_does_not_matter(hours: float) -> None:
    moment = KNOWN_MOMENT.astimezone(timezone(timedelta(hours=hours)))
    assert Signer([KNOWN_SECRET]).headers(KNOWN_ID, moment, KNOWN_BODY)["webhook-signature"] == KNOWN_SIGNATURE


def test_a_part_of_a_second_does_not_matter() -> None:
    moment = KNOWN_MOMENT + timedelta(microseconds=999_999)
    headers = Signer([KNOWN_SECRET]).headers(KNOWN_ID, moment, KNOWN_BODY)
    assert headers == {"webhook-timestamp": "1614265330", "webhook-signature": KNOWN_SIGNATURE}


@pytest.mark.parametrize("known_to_the_receiver", [OLD, NEW])
def test_while_rotating_a_receiver_may_know_either_secret(known_to_the_receiver: str) -> None:
    headers = signed(OLD, NEW, body='{"subject": "Grüße"}')
    assert Webhook(known_to_the_receiver).verify('{"subject": "Grüße"}', headers) == {"subject": "Grüße"}
    assert len(headers["webhook-signature"].split(" ")) == 2


def test_a_receiver_with_another_secret_refuses_it() -> None:
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify("{}", signed(OLD, NEW))


@pytest.mark.parametrize("changed", [{"webhook-id": "msg_2"}, {"webhook-timestamp": "tomorrow"}])
def test_what_was_signed_cannot_be_changed(changed: dict[str, str]) -> None:
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify("{}", signed(OLD) | changed)


def test_without_secrets_there_is_nothing_to_send() -> None:
    assert Signer([]).headers("msg_1", KNOWN_MOMENT, "{}") == {}


@pytest.mark.parametrize("size", [24, 25, 26, 32, 63, 64])
def test_a_secret_of_24_to_64_bytes_is_taken_with_and_without_its_prefix(size: int) -> None:
    assert check_secret(of_bytes(size)) == of_bytes(size)
    assert check_secret("whsec_" + of_bytes(size)) == "whsec_" + of_bytes(size)


def test_the_prefix_is_no_part_of_the_key() -> None:
    with_prefix, without = Signer([OLD]), Signer([OLD.removeprefix("whsec_")])
    assert with_prefix.headers("msg_1", KNOWN_MOMENT, "{}") == without.headers("msg_1", KNOWN_MOMENT, "{}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "secret",
        of_bytes(23),
        of_bytes(65),
        "whsec_whsec_" + of_bytes(24),
        "WHSEC_" + of_bytes(24),
        of_bytes(24) + "\n",
        " " + of_bytes(24),
        of_bytes(12) + " " + of_bytes(12),
        of_bytes(25).rstrip("="),
        of_bytes(24) + "==",
        of_bytes(25)[:-3] + "B==",  # its last bits belong to no byte
        of_bytes(24)[:-1] + "-",
        of_bytes(24)[:-1] + "é",
        "=" * 32,
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(text: str) -> None:
    for refusing in (check_secret, lambda secret: Signer([OLD, secret])):
        with pytest.raises(ValueError) as refused:
            refusing(text)
        assert str(refused.value) == "takes a Standard Webhooks secret such as whsec_ and Base64 of 24 to 64 bytes"
