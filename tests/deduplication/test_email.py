"""How the parts of an email are read, whatever notation they came in."""

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deduplication.email import (
    MAX_ATTACHMENTS,
    MAX_HEADER_CHARS,
    MAX_NAME_CHARS,
    MAX_RECIPIENTS,
    Attachment,
    Email,
    address_of,
    addresses_in,
    decode_header,
)

NAMES = (
    "", "Name ", "Lovelace, Ada ", '"Doe, John" ', '"a@spoof.example" ', '"<a@spoof.example>" ', "O'Brien ", '"(" ',
    "=?utf-8?q?J=C3=B6rg?= ", "(a@spoof.example) ", "(((a@spoof.example) <a@spoof.example>)) ",
    r"(it\) is <a@spoof.example>) ", "Ada (never closed ", '"never closed ',
)  # fmt: skip
NOTATIONS = (
    "<{}>", "< {} >", "<{}", "{}", "'{}'", "{}.", "mailto:{}", "{} (Ada)", "<{}>, Bob <bob@example.org>",
    "{}; bob@example.org",
)  # fmt: skip


@pytest.mark.parametrize("address", ["ada@example.org", "O'Ada+tag=x@EXAMPLE.org"])
def test_the_address_is_found_beside_every_name_and_in_every_notation(address: str) -> None:
    senders = [name + notation.format(address) for name, notation in product(NAMES, NOTATIONS)]
    assert {sender for sender in senders if address_of(sender) != address.lower()} == set()


@pytest.mark.parametrize(
    ("sender", "address"),
    [
        ('"ceo@bank.example"@evil.example', '"ceo@bank.example"@evil.example'),
        ('Boss <"CEO@bank.example"@Evil.example>', '"ceo@bank.example"@evil.example'),
        ('"<ceo@bank.example>"@evil.example', '"<ceo@bank.example>"@evil.example'),
        ('"ceo@bank.example" <"x, y"@evil.example>', '"x, y"@evil.example'),
        ('"Ada.Lovelace"@example.org', "ada.lovelace@example.org"),
        ("ceo@bank.example@evil.example", ""),
        ("<ceo@bank.example@evil.example>", ""),
        ('"(" ada@example.org (")")', "ada@example.org"),
        ("ada@example.org bob@example.org", "ada@example.org"),
        ('"ada@example.org"', "ada@example.org"),
        ('<"ada@example.org">', "ada@example.org"),
        ("", ""),
        ("Ada", ""),
        ("ada@", ""),
        ("@example.org", ""),
        ("...@..", ""),
        ("undisclosed-recipients:;", ""),
    ],
)
def test_quotes_belong_to_an_address_only_right_before_its_at_sign(sender: str, address: str) -> None:
    assert address_of(sender) == address


@pytest.mark.parametrize(
    ("subject", "clean"),
    [
        ("Réunion", "Réunion"),
        ("=?utf-8?B?UsOpdW5pb24=?=", "Réunion"),
        ("=?ISO-8859-1?Q?R=E9union?= du =?utf-8?Q?15?=", "Réunion du 15"),
        ("=?utf-8?Q?R=C3=A9?=\r\n =?utf-8?Q?union?=", "Réunion"),
        ("=?utf-8?Q?=C3=A9?= =?us-ascii?Q?tat?=", "état"),
        ("=?gb2312?B?1tDOxA==?=", "中文"),
        ("中文 =?utf-8?Q?=C3=A9t=C3=A9?= été", "中文 été été"),
        ("Réunion\r\n du 15", "Réunion du 15"),
        ("Réunion\n\tdu 15", "Réunion du 15"),
        ("Re\u0301union", "Réunion"),
        ("Réunion\u00a0du   15 ", "Réunion du 15"),
        ("Bravo 🎉", "Bravo 🎉"),
        ("", ""),
        ("=?no-such-charset?Q?abc?=", "abc"),
        ("=?utf-8*fr?Q?=C3=A9t=C3=A9?=", "été"),
        ("=?utf-8?Q?=FF?=", "ÿ"),
        ("=?utf-8?Q?R=C3=A9union_=FF?=", "Réunion \ufffd"),
        ("=?utf-8?B?UsOpdW5pb24gw6k=?= =?utf-8?Q?=A9_x?=", "Réunion é\ufffd x"),
        ("=?utf-8?Q?Caf\u00e9_=C3=A0_la?=", "Café à la"),
        ("=?utf-8?B?UsOp\u00e9dW5pb24=?=", "Réunion"),
        ("It\x92s 5 \x80", "It’s 5 €"),
        ("=?utf-8?B?UsOpdW5pb24?=", "Réunion"),
        ("=?utf-8?Q?a?==?utf-8?Q?b?=", "ab"),
        ("2 =? 3", "2 =? 3"),
        ("half a pair \ud83c", "half a pair \ufffd"),
        ("=?utf-7?Q?+2AA-?=", "\ufffd"),
    ],
)
def test_a_subject_is_decoded_unfolded_and_composed(subject: str, clean: str) -> None:
    assert decode_header(subject) == clean


def test_a_text_is_a_text_whatever_it_holds() -> None:
    email = Email(html=" \r\n", plain="Host <web1> is down: <a href='https://a.example/1'>\n<style> <img src='cid:x'>")
    assert (email.body, email.text) == (email.plain, " ".join(email.plain.split()))
    assert (email.links, email.read_html) == (("https://a.example/1",), None)


_ANYTHING = st.text(st.characters(), max_size=60)  # half surrogate pairs included
_ALMOST_HTML = st.text(alphabet="<>/ab!-'\"= \n&;pstylecrimg:hdi", max_size=80)


@given(_ANYTHING, _ANYTHING, _ANYTHING | _ALMOST_HTML, _ANYTHING | _ALMOST_HTML)
@example("=?utf-7?Q?+2AA-?=", "=?utf-7?Q?+2AA-?= <a@b>", "<p>&#xD800;</p>", "")
def test_whatever_an_email_holds_its_parts_can_be_written_out(subject: str, sender: str, html: str, plain: str) -> None:
    email = Email(subject=subject, sender=sender, html=html, plain=plain)
    targets = email.read_html.targets if email.read_html else ()
    for part in (email.clean_subject, email.sender_email, email.text, *email.links, *targets):
        assert part.encode().decode() == part


@pytest.mark.parametrize("field", ["subject", "sender", "date", "html", "plain", "message_id", "event_id"])
def test_half_a_surrogate_pair_never_gets_into_an_email(field: str) -> None:
    email = Email(**{field: "a \ud83c b"})  # type: ignore[arg-type]
    assert getattr(email, field) == "a \ufffd b"
    whole = Email(**{field: "\ud83c\udf89"})  # type: ignore[arg-type]
    assert getattr(whole, field) == "🎉", "two halves are one character"


def test_every_address_of_a_list_is_found_and_none_that_is_quoted() -> None:
    listed = 'Ada <a@example.org>, "b@x, c@x" <d@example.org>; (e@x) "f@x"@evil.example, Team: g@example.org;'
    assert addresses_in(listed) == ("a@example.org", "d@example.org", '"f@x"@evil.example', "g@example.org")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("a.pdf", "a.pdf"),
        ("C:\\docs\\a.pdf", "a.pdf"),
        ("\\\\server\\share\\a.pdf", "a.pdf"),
        ("/home/ada/a.pdf", "a.pdf"),
        ("../../a.pdf", "a.pdf"),
        ("docs/", "docs"),
        ("a\x00\r\n\x9b.pdf", "a.pdf"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        (" half \ud83c.pdf ", "half \ufffd.pdf"),
        ("", ""),
    ],
)
def test_the_name_of_an_attachment_is_a_files_name_alone(given: str, name: str) -> None:
    assert Attachment(given, "text/plain", 0, "").name == name


@pytest.mark.parametrize("given", ["application/pdf", "Application/PDF; name=a.pdf", " application/pdf ;x"])
def test_the_type_of_an_attachment_is_the_type_alone(given: str) -> None:
    assert Attachment("a.pdf", given, 0, "").content_type == "application/pdf"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["=?utf-8?B?w6k=?= ", "=?utf-8?B?", "\ufdfa", "\u0301\u0316", "<a@b.example>, ", "1"])
@pytest.mark.parametrize("field", ["subject", "sender", "date"])
def test_no_field_of_any_length_takes_long_to_read(field: str, piece: str) -> None:
    email = Email(**{field: "a@b.example " + piece * 1_000_000})  # type: ignore[arg-type]
    assert len(email.clean_subject) <= 2 * MAX_HEADER_CHARS
    assert email.date_utc is None
    assert len(email.sender_email) < MAX_HEADER_CHARS


def test_recipients_and_attachments_beyond_count_and_length_are_left_out() -> None:
    addresses = [f"{number}{'a' * 2000}@b.example" for number in range(MAX_RECIPIENTS + 5)]
    files = (Attachment("n" * 2000, "text/plain", 1, ""),) * (MAX_ATTACHMENTS + 5)
    email = Email.received(recipients=[addresses], files=files)
    assert (len(email.recipients), {len(each) for each in email.recipients}) == (MAX_RECIPIENTS, {MAX_NAME_CHARS})
    assert (len(email.attachments), len(email.attachments[0].name)) == (MAX_ATTACHMENTS, MAX_NAME_CHARS)
