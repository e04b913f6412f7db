"""What a reader sees of a body, and what is in it beside the words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from deduplication import body as body_module
from deduplication.body import Html, looks_like_html, plain_links, plain_text
from deduplication.email import Email
from deduplication.limits import MAX_LINK_CHARS, MOST_LINKS


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("Bonjour  à\r\n\ttous", "Bonjour à tous"),
        ("Host <web1> is down", "Host <web1> is down"),
        ("a<b or x>1", "a<b or x>1"),
        ("The <style> element\nhides <p>nothing</p> &amp; all", "The <style> element hides <p>nothing</p> &amp; all"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<ada@example.org> wrote:", "<ada@example.org> wrote:"),
        ("Re\u0301union", "Réunion"),
        ("", ""),
    ],
)
def test_of_plain_text_a_reader_sees_all(body: str, text: str) -> None:
    assert plain_text(body) == text


@given(st.text() | st.text(alphabet="aé \t\r\n\x0b\x1c\x85\xa0\u2003\u0301’"))
@example("  a   b  ")
def test_of_plain_text_the_words_count(body: str) -> None:
    assert plain_text(body) == unicodedata.normalize("NFC", " ".join(body.split()))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("Bonjour  à\r\n\ttous", "Bonjour à tous"),
        ("Fish &amp; chips", "Fish & chips"),
        ("<p>Bonjour&nbsp;<b>à</b> tous</p>", "Bonjour à tous"),
        ("<p>un</p><p>deux</p>", "un deux"),
        ("un<br>deux<br/>trois", "un deux trois"),
        ("<table><tr><td>un</td><td>deux</td></tr></table>", "un deux"),
        ("<p><b>Hel</b>lo, <i>you</i>!</p>", "Hello, you!"),
        ("<p>Fish &amp; chips &lt;3 &eacute; &#233;</p>", "Fish & chips <3 é é"),
        ("<html><head><title>no</title></head><body><style>p{}</style>Yes<script>no()</script></body></html>", "Yes"),
        ("<html><body>un</body></html><html><head><title>no</title></head><body>deux</body></html>", "un deux"),
        ("<p>seen<!-- not seen --></p>", "seen"),
        ("<p title='a > b'>seen</p>", "seen"),
        ("<P>CAPS</P>", "CAPS"),
        ("<p>never closed", "never closed"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<p>Re\u0301union", "Réunion"),
        ("<p></p>", ""),
        ("<img src='https://a.example/x.png'>", ""),
        ("", ""),
    ],
)
def test_of_html_a_reader_sees_the_text(body: str, text: str) -> None:
    assert Html(body).text == text


@pytest.mark.parametrize(
    "body",
    [
        "<p>Bonjour</p>",
        "un<br>deux",
        "un<BR/>deux",
        "See <a href='https://a.example'>here</a>",
        "<!DOCTYPE html><p>Bonjour",
        "\n<html lang=fr><body>Bonjour",
        "<div><style>p {}</style>Bonjour</div>",
        "<img src='cid:x'>",
        "<p class=MsoNormal>Bonjour<o:p></o:p></p>",
    ],
)
def test_a_body_of_closed_elements_looks_like_html(body: str) -> None:
    assert looks_like_html(body)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "Bonjour",
        "Host <web1> is down",
        "a<b or x>1",
        "<ada@example.org> wrote:",
        "<https://a.example/x>",
        "The <p> element",
        "In a <style> the <br> does nothing",
        "<script> and <b>bold</b>",
        "With <title>Report</title> it is <b>called</b> so",
        "List<String> list = new ArrayList<>();",
        "<host>web1</host>",
        "<strong1>web1</strong1>",
        "<p>Host <web1> is down</p>",
        "Hello<br>call List<String>",
        "Hello<br>from Joe <joe@x.example>",
        "<p>hi</p> see <https://a.example/1>",
    ],
)
def test_a_text_that_holds_what_may_be_a_tag_does_not_look_like_html(body: str) -> None:
    assert not looks_like_html(body)


def test_of_a_huge_body_its_beginning_says_what_it_is() -> None:
    assert looks_like_html("<p>Bonjour</p>" + "x" * 200_000)
    assert not looks_like_html("Bonjour" + "x" * 200_000 + "<p>Bonjour</p>")


def test_a_huge_html_body_reads_like_a_small_one() -> None:
    row = (
        "<tr><td>Fish &amp; <b>ch</b>ips</td><td><a href='https://a.example/?x=1&amp;y=2'>link</a>"
        '<img alt="" src="https://a.example/i.png?x=1&amp;y=2"></td></tr>'
    )
    body = f"<head><style>p {{}}</style><title>no</title></head><table>{row * 3000}</table><script>no</script>"
    assert Html(body).text == " ".join(["Fish & chips link"] * 3000)
    assert Html(body).links == ("https://a.example/?x=1&y=2",)
    assert Html(body).images == ("https://a.example/i.png?x=1&y=2",)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "body", ["<div>" * 60_000 + "deep", "<script>" * 60_000, "<a href=" * 60_000 + ">", "<img src='" * 60_000]
)
def test_tags_within_tags_within_tags_do_not_keep_the_service_busy(body: str) -> None:
    email = Email(html=body)
    assert len(email.text) <= 2 * len(body)
    assert (email.links, email.images) == ((), ())
    assert not looks_like_html("x" + body)


@pytest.mark.timeout(60)
def test_tags_beyond_what_anybody_writes_are_taken_as_they_stand() -> None:
    one, other = (f"<p>{word} https://a.example</p>" + "<" * 500_000 for word in ("Ada", "Eve"))
    assert Html(one).text == " ".join(one.split()) != Html(other).text
    assert (Html(one).links, Html(one).images) == (("https://a.example",), ())


@pytest.mark.parametrize(
    ("body", "links"),
    [
        ("see https://a.example/x.", ("https://a.example/x",)),
        ("(https://a.example/x), https://b.example/y!", ("https://a.example/x", "https://b.example/y")),
        ("[https://a.example/x] «https://b.example/y»", ("https://a.example/x", "https://b.example/y")),
        ("https://fr.example/wiki/Lot_(jeu)", ("https://fr.example/wiki/Lot_(jeu)",)),
        ("<https://a.example/x>", ("https://a.example/x",)),
        ("https://a.example/x https://a.example/x", ("https://a.example/x",)),
        ("https://a.example/?u=https://b.example", ("https://a.example/?u=https://b.example",)),
        ("<host> https://a.example/?x=1&amp;y=2", ("https://a.example/?x=1&amp;y=2",)),
        ("https:// and https://.", ()),
        ("ftp://a.example", ()),
        ("", ()),
    ],
)
def test_links_are_found_once_each_and_without_the_sentence_around_them(body: str, links: tuple[str, ...]) -> None:
    assert plain_links(body) == links


@pytest.mark.parametrize(
    ("body", "links"),
    [
        ("see https://a.example/x.", ("https://a.example/x",)),
        ("<a href='https://a.example/?x=1&amp;y=2'>here</a>", ("https://a.example/?x=1&y=2",)),
        ("<a href='https://a.example/x'>https://a.example/x</a>", ("https://a.example/x",)),
        ("<p>https://b.example/?x=1&amp;y=2</p>", ("https://b.example/?x=1&y=2",)),
        ("<a href='https://a.example'>a</a> https://b.example", ("https://a.example", "https://b.example")),
        ("<a href='mailto:ada@example.org'>m</a> <a href='#top'>t</a> <a href>n</a>", ()),
        ("", ()),
    ],
)
def test_links_of_html_are_its_targets_and_those_written_in_it(body: str, links: tuple[str, ...]) -> None:
    assert Html(body).links == links


@pytest.mark.parametrize(
    ("body", "images"),
    [
        ("<img src='https://a.example/x.png'><IMG SRC=cid:logo@a>", ("https://a.example/x.png", "cid:logo@a")),
        ("<img src=' https://a.example/?x=1&amp;y=2 '>", ("https://a.example/?x=1&y=2",)),
        ("<img src='cid:b'><img src='cid:a'><img src='cid:b'>", ("cid:b", "cid:a")),
        ("<img src='/x.png'><img src='?view=att'><img src=''><img src><img><img src='javascript:x'>", ()),
        ("&lt;img src='cid:a'&gt; <!-- <img src='cid:b'> -->", ()),
    ],
)
def test_images_are_those_on_the_web_and_in_the_email(body: str, images: tuple[str, ...]) -> None:
    assert Html(body).images == images


SAME_TEXT = [
    "<a href='mailto:approve+{}@a.example'>Approve</a>",
    "<a href='tel:{}'>Call</a>",
    "<a href='/{}'>Here</a>",
    "<map><area href='https://a.example/{}'></map>",
    "<form action='https://a.example/{}'><button>Yes</button></form>",
    "<img src='https://a.example/{}'>",
    "<img src='data:image/png,{}'>",
    "<img srcset='https://a.example/{} 2x'>",
    "<img src='cid:x' alt='Room {}'>",
    "<table background='https://a.example/{}'></table>",
    "<p style='background: url(https://a.example/{})'>Look</p>",
    "<p>" + "<a href='https://a.example'>x</a>" * 1200 + "<a href='https://a.example/{}'>x</a>",
    "<p>" + "<b></b>" * 12_000 + "<a href='mailto:{}@a.example'>x</a>",
]


@pytest.mark.parametrize("body", SAME_TEXT, ids=range(len(SAME_TEXT)))
def test_whatever_html_leads_to_or_shows_is_a_difference(body: str) -> None:
    one, other = body.format(1), body.format(2)
    assert Html(one).text == Html(other).text
    assert Html(one).targets != Html(other).targets


def test_links_that_changed_places_are_a_difference() -> None:
    yes, no = "https://a.example/yes", "https://a.example/no"
    pages = [f"<a href='{first}'>Yes</a> <a href='{second}'>No</a>" for first, second in ((yes, no), (no, yes))]
    assert Html(pages[0]).targets != Html(pages[1]).targets


def test_how_a_door_points_to_an_image_of_the_email_is_no_difference() -> None:
    assert Html("<img src='cid:logo@a'>").targets == Html("<img src='?view=att&th=1'>").targets == ()


def test_an_image_within_the_html_is_named_by_its_digest() -> None:
    body = "<img src='data:image/png;base64,{}'>"
    one, again, two = (Html(body.format(content)).images for content in ("aGVs\r\nbG8=", "aGVsbG8=", "aGVsbG9v"))
    assert one == again != two
    assert one[0].startswith("data:sha256,") and len(one[0]) == 76


@pytest.mark.timeout(60)
def test_a_link_that_ends_in_a_thousand_brackets_is_trimmed_in_no_time() -> None:
    assert plain_links("https://a.example/x" + ")." * 200_000) == ("https://a.example/x",)


@given(st.text(alphabet="<>/ab!-'\"= \n&;pstylecrimg:hdi", max_size=80))
def test_whatever_a_body_holds_it_is_read(body: str) -> None:
    for part in (plain_text(body), Html(body).text, *Html(body).links, *Html(body).images):
        part.encode()
    looks_like_html(body)


MANY = 3 * MOST_LINKS


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("read", "piece"),
    [
        (plain_links, "https://a.example/{} "),
        (lambda body: Html(body).links, '<a href="https://a.example/{}">x</a>'),
        (lambda body: Html(body).links, "https://a.example/{} "),
        (lambda body: Html(body).images, '<img src="https://a.example/{}">'),
    ],
)
@pytest.mark.parametrize("count", [MANY, 300_000])
def test_the_first_thousand_are_looked_at(read: Callable[[str], tuple[str, ...]], piece: str, count: int) -> None:
    found = read("".join(map(piece.format, range(count))))
    assert found == tuple(f"https://a.example/{number}" for number in range(MOST_LINKS))


def test_a_link_longer_than_any_is_none() -> None:
    assert plain_links(f"https://a.example/{'x' * MAX_LINK_CHARS} https://b.example") == ("https://b.example",)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("attribute", ["a{} ", 'a{}="x" ', "a{}='x'", "a{}/", 'x="<" a{} '])
def test_a_tag_of_any_number_of_attributes_is_read_in_no_time(attribute: str) -> None:
    tag = f"<a {''.join(map(attribute.format, range(300_000)))}>"
    assert Html(f"<p>Before {tag}link</a> after</p>").text.endswith("link after")
    assert Html(f'{tag}x</a><a href="https://a.example">y</a>').links == ("https://a.example",)
    assert Html(f'{tag}<img src="cid:1">').images == ("cid:1",)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The bodies that were split into tags and text, or searched for tags with attributes."""
    bodies: list[str] = []

    def recorded(function: Callable[[str], Any]) -> Callable[[str], Any]:
        def record(body: str) -> Any:
            bodies.append(body)
            return function(body)

        return record

    monkeypatch.setattr(body_module, "_MARKUP", SimpleNamespace(split=recorded(body_module._MARKUP.split)))
    monkeypatch.setattr(body_module, "_leading_tags", recorded(body_module._leading_tags))
    return bodies


def test_html_is_read_for_its_text_and_for_all_else_once_each(read: list[str]) -> None:
    email = Email(html="<p>un</p><a href='https://a.example'>deux</a><img src='https://a.example/i.png'>")
    for _ in range(2):
        assert (email.text, email.links, email.images) == (
            "un deux",
            ("https://a.example",),
            ("https://a.example/i.png",),
        )
        assert email.targets == ("href=https://a.example", "src=https://a.example/i.png")
    assert len(read) == 2


def test_a_body_without_links_and_images_is_read_once(read: list[str]) -> None:
    html = Html("<p>Bonjour</p><P>Ada</P>")

    assert (html.text, html.links, html.images, html.targets) == ("Bonjour Ada", (), (), ())
    assert len(read) == 1


@pytest.mark.parametrize(
    ("body", "targets"),
    [
        # A browser repairs these: it opens the link again for the block, drops the cell and shows the tag as text.
        ("<p><a href='https://a.example'>x</p><div>y</div>", ("href=https://a.example",)),
        ("<td background=b>x", ("background=b",)),
        ("<textarea><a href=x></textarea>", ("href=x",)),
        ("<p><a href='https://a.example'>x</p><div></div>", ("href=https://a.example",)),
        ("<img alt='a<p>b'>", ("alt=a<p>b",)),
        ("<a<p href='https://a.example'>x</a>", ()),
    ],
)
def test_html_leads_where_its_tags_say(body: str, targets: tuple[str, ...]) -> None:
    assert Html(body).targets == targets


@given(st.lists(st.sampled_from(["http", "HTTPs", "://", ":", "/", "x", ".", " ", "<", "(", ")", "'", "\u00a0"])))
@example(["http", "://", "x", "http", "://", "x"])
@example(["://", "http", "://", "<", "HTTPs", "://", "x"])
def test_written_links_are_all_that_begin_as_links_do(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = re.findall(r"https?://[^\s<>\"'\u00a0]+", text, re.IGNORECASE)
    assert plain_links(text) == plain_links(" ".join(found))


LEADING = "a[href], area[href], base[href], form[action], img, [background], [style*='url(']"
PIECES = [
    "<p>", "</p>", "<P>", "<a href=x>", "<A HREF='y'>", "</a>", "<area hReF=a>", "<base href=/>",
    "<form ACTION=f>", "<img>", "<IMG alt=i>", "<image src=https://i.example>", "<div background=b>",
    "<table BackGround=t>", "<b style='x:url(s)'>", "<b STYLE='x:u&#114;l(s)'>", "<b style=x>", "<i alt=a>",
    "<div>", "</div>", "<script>", "<!--", "-->", "\"", "'", ">", "<", "href", " im", "text ", "\u0130",
    "&quot;",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_where_nothing_is_written_that_leads_anywhere_a_parser_would_find_nothing(body: str) -> None:
    nodes = LexborHTMLParser(body).css(LEADING)
    found = [node.attributes.get(name) for node in nodes for name in body_module._SHOWN]

    assert bool(Html(body)._attributes) is any(value and value.strip() for value in found)


def as_a_browser_parses_it(body: str) -> tuple[str, set[str]]:
    """Text and targets, by way of a tree of elements. Gaps are for the text alone: they can change the tree."""
    tree = LexborHTMLParser(re.sub(rf"<(?=/?{body_module._BLOCK})", " <", body, flags=re.IGNORECASE))
    tree.strip_tags(["script", "style", "head", "title"])
    leading = LexborHTMLParser(body).css(LEADING)
    targets = [(name, node.attributes.get(name) or "") for node in leading for name in body_module._SHOWN]
    shown = {f"{name}={value.strip()}" for name, value in targets if value.strip() and name != "src"}
    return plain_text(tree.body.text() if tree.body else ""), shown


BROKEN = [
    "<p>", "</p>", "<P CLASS=x>", "<p/>", "<div>", "</div>", "<br>", "<br/>", "<br />", "<h1>", "</h1>", "<ul>", "<li>",
    "<pre>", "<b>", "</b>", "<i>", "</i>", "<em>a</em>b", "<u></u>", "<strong>", "</strong>",
    "<font color='red'>", "</font>", "<o:p>", "</o:p>", "<span title='a > b'>", "</span>", "<a 'x\"y>",
    "<table><tr><td>un</td></tr></table>", "<table BackGround = 't'><tr><td>deux</table>",
    "<a href=x>", "<A HREF='?a=1&copy=2&amp;b&notes&lt'>", '<a href="\r\n k\r\nl" href=second>', "</a>",
    "<area hReF=a/>", "<base href=/>", "<img>", "<IMG alt=i/>", "<img/alt='a<p>b'srcset=\"s\">", "<img alt='",
    "<b alt=a href>", "<a\fhref=f>",
    "<script>", "</script>", "<style >", "</STYLE\n>", "<title>", "</title>", "<head>", "<body>", "</body>", "</html>",
    "<!--", "-->", "--!>", "<!-->", "<!--->", "<!x>", "<?xml y>", "</ >", "</>", "<!DOCTYPE html>", "<![CDATA[x]]>",
    "text", "un", " ", "\r\n", "\u0301", "\ufeff", "\0", "é", "\x01", "\x0b", "\x1c", "\ufffe", "&amp;", "&eacute",
    "&eacutex", "&copy2", "&notit;", "&#233;", "&#00000000065", "&#x41;", "&#99999999999;", "&", "&#", "<", "< ", ">",
    '"', "'", "=", "/",
]  # fmt: skip


@given(st.lists(st.sampled_from(BROKEN), max_size=8).map("".join))
@example("<p>un<div>deux</div></p>trois")
@example("<b>un<p>deux</b>trois</p>")
@example("<p><a href='https://a.example'>x</p><div></div>")
@example("&am<b>p;")
def test_html_reads_as_a_browser_parses_it(body: str) -> None:
    html = Html(body)
    assert (html.text, {each for each in html.targets if not each.startswith("src=")}) == as_a_browser_parses_it(body)


ROW = (
    "<tr><td class=MsoNormal style='padding:0cm 5.4pt' {0}><font face=Arial><b>Lot {0}</b> <i>of <u>{0}</u></i>"
    '<o:p></o:p><a href="https://a.example/?lot={0}&amp;page=1"><img alt="Lot {0} > all" src="https://i.example/{0}.png"></a>'
    "<!--[if mso]><table><tr><td><![endif]--><p>Fish &amp; chips&nbsp;{0}<p><font size=2>not closed</td></tr>\n"
)


@pytest.mark.parametrize("rows", [1, 10, 100])
def test_a_newsletter_with_fonts_that_are_not_closed_reads_as_a_browser_parses_it(rows: int) -> None:
    body = (
        f"<html><head><style>p {{}}</style></head><body><table>{''.join(map(ROW.format, range(rows)))}</table></body>"
    )
    assert Html(body).text == as_a_browser_parses_it(body)[0]
    assert Html(body).links == tuple(f"https://a.example/?lot={number}&page=1" for number in range(rows))
    assert Html(body).images == tuple(f"https://i.example/{number}.png" for number in range(rows))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<svg><title/></svg>after", "after"),
        ("<style/>after", "after"),
        ("<script>hidden<style>", ""),
        ("<p>&#" + "9" * 5000 + ";</p>", "\ufffd"),
        ("<p>&#" + "0" * 5000 + "65;</p>", "A"),
        ("<b a='>'>x</b>", "x"),
        ("before <a href='never closed ", "before"),
    ],
)
def test_odd_html_hides_no_more_than_it_must(body: str, text: str) -> None:
    assert Html(body).text == text
