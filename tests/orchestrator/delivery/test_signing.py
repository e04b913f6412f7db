import base64
from datetime import UTC, datetime, timedelta, timezone

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook

from orchestrator.delivery.signing import check_secret, new_secret, public_keys, signature_headers

OLD = "whsec_" + base64.b64encode(b"the old secret of 24 byt").decode()

# The example of the Standard Webhooks specification's own test vectors.
KNOWN_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KNOWN_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
KNOWN_MOMENT = datetime.fromtimestamp(1614265330, UTC)
KNOWN_BODY = '{"test": 2432232314}'
KNOWN_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

# The example that Svix, where the scheme comes from, prints for an asymmetric key.
PRIVATE = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
ITS_PUBLIC = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
ITS_SEED = "whsk_" + base64.b64encode(base64.b64decode(PRIVATE.removeprefix("whsk_"))[:32]).decode()


def of_bytes(count: int) -> str:
    return base64.b64encode(bytes(range(count))).decode()


def signed(*secrets: str, body: str = "{}") -> dict[str, str]:
    return {"webhook-id": "msg_1", **signature_headers(secrets, "msg_1", datetime.now(UTC), body)}


@pytest.mark.parametrize("secret", [KNOWN_SECRET, KNOWN_SECRET.removeprefix("whsec_")])
@pytest.mark.parametrize("hours", [-8, 0, 5.5, 14])
@pytest.mark.parametrize("microseconds", [0, 999_999])
def test_the_signature_is_that_of_the_published_example(secret: str, hours: float, microseconds: int) -> None:
    moment = KNOWN_MOMENT.astimezone(timezone(timedelta(hours=hours))) + timedelta(microseconds=microseconds)
    headers = signature_headers([secret], KNOWN_ID, moment, KNOWN_BODY)
    assert headers == {"webhook-timestamp": "1614265330", "webhook-signature": KNOWN_SIGNATURE}


def verify_by_public_key(public: str, headers: dict[str, str], body: str) -> None:
    """As a receiver does it by the text of the standard: ed25519 over id, timestamp and body."""
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix("whpk_")))
    message = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
    (signature,) = [each[4:] for each in headers["webhook-signature"].split() if each.startswith("v1a,")]
    key.verify(base64.b64decode(signature), message)


@pytest.mark.parametrize("secret", [PRIVATE, ITS_SEED])
def test_a_private_key_signs_what_its_public_key_verifies(secret: str) -> None:
    assert public_keys([OLD, secret]) == [ITS_PUBLIC]
    headers = signed(OLD, secret, body='{"subject": "Grüße"}')
    verify_by_public_key(ITS_PUBLIC, headers, '{"subject": "Grüße"}')
    assert Webhook(OLD).verify('{"subject": "Grüße"}', headers), "while one kind is replaced by the other"
    for changed, body in (({}, '{"subject": "Grüsse"}'), ({"webhook-id": "msg_2"}, '{"subject": "Grüße"}')):
        with pytest.raises(InvalidSignature):
            verify_by_public_key(ITS_PUBLIC, headers | changed, body)


@pytest.mark.parametrize("is_private", [False, True])
def test_new_secrets_are_valid_and_differ(is_private: bool) -> None:
    made = {check_secret(new_secret(is_private=is_private)) for _ in range(3)}
    assert len(made) == 3
    for key in public_keys(made):
        assert key.startswith("whpk_")


@pytest.mark.parametrize("size", [24, 25, 26, 32, 63, 64])
def test_a_secret_has_24_to_64_bytes_with_or_without_its_prefix(size: int) -> None:
    for secret in (of_bytes(size), f"whsec_{of_bytes(size)}"):
        assert check_secret(secret) == secret


@pytest.mark.parametrize(
    "text",
    [
        *("", "whsec_", "secret", of_bytes(23), of_bytes(65), "whsec_whsec_" + of_bytes(24), "WHSEC_" + of_bytes(24)),
        *(of_bytes(24) + "\n", " " + of_bytes(24), of_bytes(12) + " " + of_bytes(12), of_bytes(25).rstrip("=")),
        of_bytes(24) + "==",
        of_bytes(25)[:-3] + "B==",  # its last bits belong to no byte
        *(of_bytes(24)[:-1] + "-", of_bytes(24)[:-1] + "é", "=" * 32),
        *("whsk_", "whsk_" + of_bytes(31), "whsk_" + of_bytes(33), PRIVATE[:-4], ITS_PUBLIC),
        "whsk_" + of_bytes(64),  # the second half must be the public key: a mistyped key shows here, not later
    ],
)
def test_an_invalid_secret_is_refused_and_not_shown(text: str) -> None:
    kind = "an ed25519 key: whsk_" if text.startswith("whsk_") else "a Standard Webhooks secret such as whsec_"
    with pytest.raises(ValueError, match=f"^must be {kind} and Base64 of ") as refused:
        check_secret(text)
    assert len(text) < 10 or text[5:] not in str(refused.value)
