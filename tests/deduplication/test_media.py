"""When two links are the same file, and which links of an email hand one over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.media import IDENTITY_PARAMETERS, MediaMode, canonical_url, delivery_links, media_name
from deduplication.names import MAX_POST_KEY_CHARS, WEEK_MS, Gate, Kind, Name

SHARED = "https://www.dropbox.com/scl/fi/k3y/photo.jpg"


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("https://Files.Example/A/b?utm_source=x#top", "https://files.example/A/b"),
        ("HTTPS://files.example/a", "https://files.example/a"),
        ("https://files.example/a///", "https://files.example/a"),
        ("https://files.example/", "https://files.example"),
        ("https://files.example./a", "https://files.example/a"),
        ("https://files.example:443/a", "https://files.example/a"),
        ("http://files.example:80/a", "http://files.example/a"),
        ("https://files.example:8443/a", "https://files.example:8443/a"),
        ("https://ada:secret@files.example/a", "https://files.example/a"),
        ("https://[2001:DB8::1]:8443/a/", "https://[2001:db8::1]:8443/a"),
        ("https://BÜCHER.example/a", "https://xn--bcher-kva.example/a"),
        ("https://xn--bcher-kva.example/a", "https://xn--bcher-kva.example/a"),
        ("https://bücher。example/a", "https://xn--bcher-kva.example/a"),
        ("https://straße.example/a", "https://xn--strae-oqa.example/a"),
        ("https://files.example/%c3%a9t%C3%A9", "https://files.example/%C3%A9t%C3%A9"),
        ("https://files.example/%41", "https://files.example/%41"),
        (" https://files.example/a/ \n", "https://files.example/a"),
    ],
)
def test_the_canonical_url_leaves_out_what_does_not_say_which_file_it_is(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical


@pytest.mark.parametrize(
    "url",
    ["mailto:ada@b.example?subject=a", "tg://resolve?domain=a", "no url", "", "http://", "http://[::1"]
    + ["http://a.example:99999/b?c", "http://a℀b.example/", "http://./a", "http://a b/c?d"],
)
def test_what_is_no_valid_web_address_stays_as_it_is(url: str) -> None:
    assert canonical_url(url) == url


@pytest.mark.parametrize(
    "link",
    [
        "https://drive.google.com/open?id={}", "https://drive.google.com/uc?export=download&id={}",
        "https://docs.google.com/uc?id={}", "https://docs.google.com/viewer?url={}",
        "https://drive.usercontent.google.com/download?id={}", "https://www.dropbox.com/sh/k/h?preview={}.jpg",
        "https://onedrive.live.com/redir?resid=A!{}", "https://onedrive.live.com/?cid=A&id=A!{}",
        "https://onedrive.live.com/?redeem={}", "https://x.sharepoint.com/_layouts/15/Doc.aspx?sourcedoc=%7B{}%7D",
        "https://x-my.sharepoint.com/my?id=%2F{}.pdf", "https://x.sharepoint.com/download.aspx?UniqueId={}",
        "https://m.youtube.com/watch?v={}", "https://www.youtube.com/playlist?list={}",
        "https://www.youtube.com/watch?list={}", "https://web.facebook.com/watch/?v={}",
        "https://www.facebook.com/story.php?story_fbid=1&id={}", "https://vk.com/feed?w=wall-1_{}",
        "https://mega.nz/file/a#key{}", "https://mega.nz/#!{}!key", "https://u.pcloud.link/publink/show?code={}",
        "https://eur01.safelinks.protection.outlook.com/?url=https%3A%2F%2Fwe.tl%2Ft-{}",
    ],
)  # fmt: skip
def test_two_files_are_never_taken_for_one(link: str) -> None:
    assert canonical_url(link.format(1)) != canonical_url(link.format(2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://drive.google.com/open?id=1&usp=drive_fs", "https://drive.google.com/open?authuser=0&id=1"),
        ("https://drive.google.com/file/d/1/view?usp=sharing", "https://drive.google.com/file/d/1/view?resourcekey=k"),
        (f"{SHARED}?rlkey=a&st=b&dl=0", f"{SHARED}?rlkey=a&dl=1"),
        ("https://onedrive.live.com/redir?resid=A!1&authkey=!k&e=x", "https://onedrive.live.com/redir?RESID=A!1"),
        ("https://onedrive.live.com/?cid=A&id=A!1", "https://onedrive.live.com?id=A!1&cid=A&o=OneUp"),
        ("https://1drv.ms/u/s!abc?e=x", "https://1drv.ms/u/s!abc?e=y"),
        ("https://x.sharepoint.com/:w:/s/IT/abc?e=x", "https://x.sharepoint.com/:w:/s/IT/abc?e=y"),
        ("https://wetransfer.com/downloads/a/b?utm_campaign=x", "https://wetransfer.com/downloads/a/b"),
        ("https://www.youtube.com/watch?v=1&list=2&index=3&t=4s", "https://www.youtube.com/watch?v=1"),
        ("https://vimeo.com/1/h?share=copy", "https://vimeo.com/1/h"),
        ("https://drive.google.com/open?id=", "https://drive.google.com/open"),
    ],
)
def test_the_same_file_is_the_same_however_it_was_shared(one: str, other: str) -> None:
    assert canonical_url(one) == canonical_url(other)


def test_a_host_that_only_ends_like_a_listed_one_is_another_host() -> None:
    assert canonical_url("https://notyoutube.com/watch?v=1") == "https://notyoutube.com/watch"
    assert delivery_links(["https://notdropbox.com/s/k/a.zip"], MediaMode.LISTED) == ()


def test_the_table_can_be_extended() -> None:
    table = {**IDENTITY_PARAMETERS, "files.example/get": ("File", "part")}
    assert canonical_url("https://dl.files.example/get?x=1&part=2&file=A", table) == (
        "https://dl.files.example/get?file=A&part=2"
    )
    assert canonical_url("https://files.example/getaway?file=A", table) == "https://files.example/getaway"
    assert media_name("https://files.example/get/?file=A", table).value == "https://files.example/get?file=A"


_KNOWN_HOSTS = st.from_regex(r"https://(mega\.nz|www\.youtube\.com|drive\.google\.com)/[/ ?#&=%a-fv\t]*")


@given(st.text() | st.from_regex(r"https?://[a-zA-Zß.:@ü。/\[\]0-9]*[/ ?#&=%a-fv\t]*") | _KNOWN_HOSTS)
def test_a_canonical_url_is_its_own_canonical_url(url: str) -> None:
    once = canonical_url(url)
    assert canonical_url(once) == once
    once.encode()


def test_a_media_name_is_the_canonical_url_kept_for_a_week() -> None:
    name = media_name("https://WE.tl/t-1?src=mail")
    assert name == Name(Kind.MEDIA, "", "https://we.tl/t-1")
    assert (name.kept_ms, name.gate) == (WEEK_MS, Gate.MEDIA)
    names = {media_name(f"https://we.tl/{'a' * 10_000}{last}").value for last in "bc\ud83d"}
    assert len(names) == 3 and all(len(name.encode()) <= MAX_POST_KEY_CHARS for name in names)


@pytest.mark.parametrize(
    "link",
    [
        f"{SHARED}?rlkey=a&dl=0", "https://www.dropbox.com/s/abc/cut.mov?dl=0", "https://www.dropbox.com/sh/abc/def",
        "https://www.dropbox.com/t/abc", "https://dl.dropboxusercontent.com/scl/fi/abc/photo.jpg?rlkey=a",
        "https://fromsmash.com/abc", "https://fromsmash.com/my-file", "https://studio.fromsmash.com/rushes-lot-3",
        "https://www.swisstransfer.com/d/0f4d-11", "https://wetransfer.com/downloads/abc/def",
        "https://studio.wetransfer.com/downloads/abc/def", "https://we.tl/t-abc",
        "https://drive.google.com/file/d/abc/view?usp=sharing", "https://drive.google.com/drive/folders/abc",
        "https://drive.google.com/open?id=abc", "https://docs.google.com/document/d/abc/edit#heading=h.1",
        "https://onedrive.live.com/?id=A!1&cid=A", "https://1drv.ms/t/c/abc/def?e=x", "https://1drv.ms/f/s!abc",
        "https://studio.sharepoint.com/:f:/s/IT/abc?e=x",
        "https://studio-my.sharepoint.com/personal/ada/Documents/Images/photo.jpg",
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", [MediaMode.LISTED, MediaMode.ALL])
def test_a_link_to_a_shared_file_is_a_delivery(link: str, mode: MediaMode) -> None:
    assert delivery_links([link], mode) == (link,)
    assert delivery_links([link], MediaMode.OFF) == ()


@pytest.mark.parametrize(
    "link",
    [
        "https://www.dropbox.com/", "https://www.dropbox.com/?utm_source=footer",
        "https://www.dropbox.com/login?cont=x", "https://www.dropbox.com/fr/login",
        "https://www.dropbox.com/help/desktop-web/x", "https://help.dropbox.com/share/link",
        "https://www.dropbox.com/static/images/spectrum/logo.svg", "https://www.dropbox.com/static/30168/css/main.css",
        "https://www.dropbox.com/icon.png", "https://fromsmash.com/fr", "https://fromsmash.com/assets/emails/download",
        "https://fromsmash.com/logo", "https://fromsmash.com/mail/header.png", "https://wetransfer.com/mail/main.css",
        "https://www.swisstransfer.com/fr-ch", "https://www.swisstransfer.com/favicon.ico",
        "https://wetransfer.com/about", "https://wetransfer.com/terms-of-service",
        "https://wetransfer.com/account/unsubscribe/abc", "https://cdn.wetransfer.com/abc/email-header.png",
        "https://click.e.wetransfer.com/abc", "https://drive.google.com/drive/u/0/my-drive",
        "https://drive.google.com/drive", "https://docs.google.com/document/u/0",
        "https://onedrive.live.com/about/fr-fr", "https://studio.sharepoint.com/sites/IT",
        "https://studio.sharepoint.com/sites/IT/SitePages/Home.aspx",
        "https://studio.sharepoint.com/sites/IT/SiteAssets/head.jpg",
        "https://studio.sharepoint.com/_layouts/15/images/head.aspx",
        "https://dl.dropboxusercontent.com/s/abc/logo-studio.png",
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", [MediaMode.LISTED, MediaMode.ALL])
def test_what_a_delivery_service_dresses_its_emails_with_is_no_delivery(link: str, mode: MediaMode) -> None:
    assert delivery_links([link], mode) == ()


@pytest.mark.parametrize(
    "link",
    [
        "https://studio.example", "https://studio.example/?utm_source=signature&utm_medium=email",
        "https://studio.example/index.html", "https://studio.example/en-gb/", "https://studio.example/privacy-policy",
        "https://click.studio.example/abc", "https://track.studio.example/abc", "https://open.studio.example/abc.gif",
        "https://studio.us1.list-manage.com/track/click?u=1", "https://mailchimp.com/monkey-rewards",
        "https://u1.ct.sendgrid.net/ls/click?upn=1", "https://mail.studio.example/wf/open?upn=1",
        "https://studio.example/img/pixel.gif?x=1", "https://studio.example/u/unsubscribe?id=1",
        "https://studio.example/mail?action=unsubscribe", "https://studio.example/d%C3%A9sinscription/1",
        "https://studio.example/desabonnement", "https://studio.example/media/signature_ada.png",
        "https://studio.example/mail/image001.jpg", "https://studio.example/mail/linkedin.png",
        "mailto:ada@studio.example", "http://[::1",
    ],
)  # fmt: skip
def test_trackers_and_signatures_are_left_out_in_every_mode(link: str) -> None:
    assert delivery_links([link], MediaMode.ALL, hosts=["studio.example"]) == ()
    assert delivery_links([link], MediaMode.LISTED, hosts=["studio.example"]) == ()


@pytest.mark.parametrize(
    "link",
    [
        "https://i.redd.it/abc.jpg", "https://studio.example/help/how-to-cut", "https://studio.example/static/showreel",
        "https://studio.example/logotherapy.jpg", "https://open.spotify.com/track/abc", "https://youtu.be/abc",
        "https://mega.nz/#!a!key",
    ],
)  # fmt: skip
def test_all_takes_links_of_any_host_and_listed_only_those_of_listed_ones(link: str) -> None:
    assert delivery_links([link], MediaMode.ALL) == (link,)
    assert delivery_links([link], MediaMode.LISTED) == ()


def test_the_listed_hosts_are_configurable() -> None:
    links = ["https://we.tl/t-1", "https://cdn.studio.example/rushes/one.jpg", "https://bücher.example/a"]
    assert delivery_links(links, MediaMode.LISTED, hosts=["*.studio.example", "Bücher.example"]) == tuple(links[1:])


def test_each_file_counts_once_in_the_order_of_the_email() -> None:
    links = ["https://we.tl/t-2", "https://we.tl/t-1?a", "https://WE.tl/t-2/#x", "https://we.tl/t-1"]
    assert delivery_links(links, MediaMode.LISTED) == ("https://we.tl/t-2", "https://we.tl/t-1?a")
