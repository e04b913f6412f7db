from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, timezone

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook, WebhookVerificationError

from orchestrator.delivery.signing import Signer, check_secret, new_secret, public_keys

OLD = "whsec_" + base64.b64encode(b"the old secret of 24 byt").decode()
NEW = "whsec_" + base64.b64encode(b"the new secret, of thirty-two b.").decode()
OTHER = "whsec_" + base64.b64encode(b"a secret nobody was told").decode()

# The example of the Standard Webhooks specification's own test vectors.
KNOWN_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KNOWN_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
KNOWN_MOMENT = datetime.fromtimestamp(1614265330, UTC)
KNOWN_BODY = '{"test": 2432232314}'
KNOWN_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

# The example that Svix, where the scheme comes from, prints for an asymmetric key.
PRIVATE = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
ITS_PUBLIC = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="


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


def verify_by_public_key(public: str, headers: dict[str, str], body: str) -> None:
    """As a receiver does it by the text of the standard: ed25519 over id, timestamp and body."""
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix("whpk_")))
    message = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
    (signature,) = [each[4:] for each in headers["webhook-signature"].split() if each.startswith("v1a,")]
    key.verify(base64.b64decode(signature), message)


def test_a_private_key_signs_what_its_public_key_verifies() -> None:
    assert public_keys([PRIVATE]) == [ITS_PUBLIC]
    headers = signed(PRIVATE, body='{"subject": "Grüße"}')
    verify_by_public_key(ITS_PUBLIC, headers, '{"subject": "Grüße"}')
    with pytest.raises(InvalidSignature):
        verify_by_public_key(ITS_PUBLIC, headers, '{"subject": "Grüsse"}')
    with pytest.raises(InvalidSignature):
        verify_by_public_key(ITS_PUBLIC, headers | {"webhook-id": "msg_2"}, '{"subject": "Grüße"}')


def test_while_a_shared_secret_is_replaced_by_a_key_both_verify() -> None:
    headers = signed(OLD, PRIVATE)
    verify_by_public_key(ITS_PUBLIC, headers, "{}")
    assert Webhook(OLD).verify("{}", headers) == {}
    assert [each.split(",")[0] for each in headers["webhook-signature"].split()] == ["v1", "v1a"]


def test_a_private_key_may_be_given_without_its_public_half() -> None:
    seed = "whsk_" + base64.b64encode(base64.b64decode(PRIVATE.removeprefix("whsk_"))[:32]).decode()
    assert public_keys([seed]) == [ITS_PUBLIC]
    assert signed(seed)["webhook-signature"].startswith("v1a,")


def test_new_secrets_are_ones_and_differ() -> None:
    for is_private in (False, True):
        made = {check_secret(new_secret(is_private=is_private)) for _ in range(3)}
        assert len(made) == 3
    headers = signed(key := new_secret(is_private=True))
    verify_by_public_key(public_keys([key])[0], headers, "{}")


@pytest.mark.parametrize(
    "text",
    ["whsk_", "whsk_" + of_bytes(31), "whsk_" + of_bytes(33), "whsk_" + of_bytes(64), PRIVATE[:-4], ITS_PUBLIC],
)
def test_what_is_no_private_key_is_refused_and_not_repeated(text: str) -> None:
    """Of 64 bytes the second half is the public key of the first: a mistyped key shows here, not at the receiver."""
    for refusing in (check_secret, lambda secret: Signer([OLD, secret])):
        with pytest.raises(ValueError) as refused:
            refusing(text)
        assert str(refused.value).startswith("takes ") and text[5:15] not in str(refused.value)[6:] or len(text) == 5
