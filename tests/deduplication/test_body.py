"""What a reader sees of a body, and what is in it beside the words."""

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from deduplication import body as body_module
from deduplication.body import MAX_LINK_CHARS, MAX_LINKS, Html, looks_like_html, plain_links, plain_text

C1 = "".join(map(chr, range(0x80, 0xA0)))  # read as the letters that Windows-1252 has there, see below


@given(st.text(st.characters(exclude_characters=C1)) | st.text(alphabet="aé \t\r\n\x0b\x1c\xa0\u2003\u0301’"))
@example("  a   b  ")
@example("The <style> element\nhides <p>nothing</p> &amp; all, Re\u0301union of 1 < 2")
def test_of_plain_text_the_words_count(body: str) -> None:
    assert plain_text(body) == unicodedata.normalize("NFC", " ".join(body.split()))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("Bonjour  à\r\n\ttous", "Bonjour à tous"),
        ("It\x92s 5 \x80\x85 \x81", "It’s 5 €… \x81"),
        ("<p>It\x92s 5 \x80\x85 &ndash; &#146;</p>", "It’s 5 €… – ’"),
        ("<p>Bonjour&nbsp;<b>à</b> tous</p>", "Bonjour à tous"),
        ("<p>Fish &amp; chips &lt;3 &eacute; &#233;</p>", "Fish & chips <3 é é"),
        ("<html><head><title>no</title></head><body><style>p{}</style>Yes<script>no()</script></body></html>", "Yes"),
        ("<html><body>un</body></html><html><head><title>no</title></head><body>deux</body></html>", "un deux"),
        ("<p>seen<!-- not seen --></p>", "seen"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<p>Re\u0301union", "Réunion"),
        ("<p></p>", ""),
        ("<img src='https://a.example/x.png'>", ""),
        ("", ""),
        ("<svg><title/></svg>after", "after"),
        ("<style/>after", "after"),
        ("<script>hidden<style>", ""),
        ("<p>&#" + "9" * 5000 + ";</p>", "\ufffd"),
        ("<p>&#" + "0" * 5000 + "65;</p>", "A"),
        ("before <a href='never closed ", "before"),
    ],
)
def test_of_html_a_reader_sees_the_text(body: str, text: str) -> None:
    assert Html(body).text == text


@pytest.mark.parametrize(
    "body",
    [
        "<p>Bonjour</p>", "un<br>deux", "un<BR/>deux", "See <a href='https://a.example'>here</a>",
        "<!DOCTYPE html><p>Bonjour", "\n<html lang=fr><body>Bonjour", "<div><style>p {}</style>Bonjour</div>",
        "<img src='cid:x'>", "<p class=MsoNormal>Bonjour<o:p></o:p></p>",
    ],
)  # fmt: skip
def test_a_body_of_closed_elements_looks_like_html(body: str) -> None:
    assert looks_like_html(body)


@pytest.mark.parametrize(
    "body",
    [
        "", "Bonjour", "Host <web1> is down", "a<b or x>1", "<ada@example.org> wrote:", "<https://a.example/x>",
        "The <p> element", "In a <style> the <br> does nothing", "<script> and <b>bold</b>",
        "With <title>Report</title> it is <b>called</b> so", "List<String> list = new ArrayList<>();",
        "<host>web1</host>", "<strong1>web1</strong1>", "<p>Host <web1> is down</p>", "Hello<br>call List<String>",
        "Hello<br>from Joe <joe@x.example>", "<p>hi</p> see <https://a.example/1>",
    ],
)  # fmt: skip
def test_a_text_that_holds_what_may_be_a_tag_does_not_look_like_html(body: str) -> None:
    assert not looks_like_html(body)


def test_of_a_huge_body_its_beginning_says_what_it_is() -> None:
    assert looks_like_html("<p>Bonjour</p>" + "x" * 200_000)
    assert not looks_like_html("Bonjour" + "x" * 200_000 + "<p>Bonjour</p>")


@pytest.mark.timeout(60)
def test_tags_beyond_what_anybody_writes_are_taken_as_they_stand() -> None:
    one, other = (f"<p>{word} https://a.example</p>" + "<" * 500_000 for word in ("Ada", "Eve"))
    assert Html(one).text == " ".join(one.split()) != Html(other).text
    assert (Html(one).links, Html(one).targets) == (("https://a.example",), ())


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
        ("<area href='https://a.example'>", ()),
        ("", ()),
    ],
)
def test_links_of_html_are_its_targets_and_those_written_in_it(body: str, links: tuple[str, ...]) -> None:
    assert Html(body).links == links


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
    page = "<a href='https://a.example/{}'>Yes</a> <a href='https://a.example/{}'>No</a>"
    assert Html(page.format("yes", "no")).targets != Html(page.format("no", "yes")).targets


def test_an_image_within_the_html_is_named_by_its_digest() -> None:
    body = "<img src='data:image/png;base64,{}'>"
    one, again, two = (Html(body.format(content)).targets for content in ("aGVs\r\nbG8=", "aGVsbG8=", "aGVsbG9v"))
    assert one == again != two
    assert one[0].startswith("src=data:sha256,") and len(one[0]) == 80


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["https://a.example/{} ", '<a href="https://a.example/{}">x</a>'])
@pytest.mark.parametrize("count", [3 * MAX_LINKS, 300_000])
def test_the_first_thousand_links_are_looked_at(piece: str, count: int) -> None:
    body = "".join(map(piece.format, range(count)))
    first = tuple(f"https://a.example/{number}" for number in range(MAX_LINKS))
    assert Html(body).links == first
    assert "href" in piece or plain_links(body) == first


def test_a_link_longer_than_any_is_none() -> None:
    assert plain_links(f"https://a.example/{'x' * MAX_LINK_CHARS} https://b.example") == ("https://b.example",)


@pytest.mark.parametrize(
    ("body", "targets"),
    [
        # A browser repairs these: it opens the link again for the block, drops the cell and shows the tag as text.
        ("<p><a href='https://a.example'>x</p><div>y</div>", ("href=https://a.example",)),
        ("<td background=b>x", ("background=b",)),
        ("<textarea><a href=x></textarea>", ("href=x",)),
        ("<img alt='a<p>b'>", ("alt=a<p>b",)),
        ("<a<p href='https://a.example'>x</a>", ()),
    ],
)
def test_html_leads_where_its_tags_say(body: str, targets: tuple[str, ...]) -> None:
    assert Html(body).targets == targets


LEADING = "a[href], area[href], base[href], form[action], img, [background], [style*='url(']"


def as_a_browser_parses_it(body: str) -> tuple[str, set[str]]:
    """Text and targets, by way of a tree of elements. Gaps are for the text alone: they can change the tree."""
    tree = LexborHTMLParser(re.sub(rf"<(?=/?{body_module._BLOCK})", " <", body, flags=re.IGNORECASE))
    tree.strip_tags(["script", "style", "head", "title"])
    leading = LexborHTMLParser(body).css(LEADING)
    targets = [(name, node.attributes.get(name) or "") for node in leading for name in body_module._READ_ATTRIBUTES]
    shown = {f"{name}={value.strip()}" for name, value in targets if value.strip() and name != "src"}
    return plain_text(tree.body.text() if tree.body else ""), shown


BROKEN = [
    "<p>", "</p>", "<P CLASS=x>", "<p/>", "<div>", "</div>", "<br>", "<br/>", "<br />", "<h1>", "</h1>", "<ul>", "<li>",
    "<pre>", "<b>", "</b>", "<i>", "</i>", "<em>a</em>b", "<u></u>", "<strong>", "</strong>",
    "<font color='red'>", "</font>", "<o:p>", "</o:p>", "<span title='a > b'>", "</span>", "<a 'x\"y>",
    "<table><tr><td>un</td></tr></table>", "<table BackGround = 't'><tr><td>deux</table>",
    "<a href=x>", "<A HREF='?a=1&copy=2&amp;b&notes&lt'>", '<a href="\r\n k\r\nl" href=second>', "</a>",
    "<area hReF=a/>", "<base href=/>", "<img>", "<IMG alt=i/>", "<img/alt='a<p>b'srcset=\"s\">", "<img alt='",
    "<b alt=a href>", "<a\fhref=f>", "<b style='x:url(s)'>", "<b STYLE='x:u&#114;l(s)'>", "<b style=x>",
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


@pytest.mark.parametrize("rows", [1, 300])
def test_a_newsletter_with_fonts_that_are_not_closed_reads_as_a_browser_parses_it(rows: int) -> None:
    body = (
        f"<html><head><style>p {{}}</style></head><body><table>{''.join(map(ROW.format, range(rows)))}</table></body>"
    )
    assert Html(body).text == as_a_browser_parses_it(body)[0]
    assert Html(body).links == tuple(f"https://a.example/?lot={number}&page=1" for number in range(rows))
    images = [target for target in Html(body).targets if target.startswith("src=")]
    assert images == [f"src=https://i.example/{number}.png" for number in range(rows)]
