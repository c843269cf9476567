"""Server URLs: what they mean, and errors that name the wrong part and hide secrets."""

from typing import Any

import pytest

from queasy import (
    Client,
    InvalidUrl,
    SyncClient,
)
from queasy.store.net.url import parse_url
from tests.unit.ids import short

BAD_URLS = [
    "http://host", "host:6379", "redis://h:99999", "redis://h:port", "redis://h/x", "unix://",
    "redis+sentinel://h:26379", "redis+cluster://h:1/3", "redis+magic://h", "redis://a,b",
    "redis://h?colour=red", "redis://h?db=x", "unix://tmp/socket", "unix://me:se/hunter2@/socket",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_bad_url_is_refused_without_showing_secrets(url: str) -> None:
    with_secret = url.replace("://", "://user:hunter2@", 1)
    for one in (url, with_secret):
        with pytest.raises(InvalidUrl, match="url") as caught:
            Client(one)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://user:hunter2@host", r"begins with http://\)$"),
        ("localhost:6379", r"does not begin with a scheme, such as redis://\)$"),
        ("user:hunter2@host:6379", r"does not begin with a scheme"),
        ("user:hunter2://@host", r"does not begin with a scheme"),
        ("redis://h:port", r"begins with redis://\)$"),
        ("", r"is empty\)$"),
    ],
)
def test_error_of_a_url_says_where_the_url_came_from_and_how_it_begins(
    url: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Client, SyncClient):
        with pytest.raises(InvalidUrl, match=rf"\(the argument url {says}") as caught:
            kind(url)
        assert "hunter2" not in str(caught.value)
        if url:  # else it counts as absent
            with monkeypatch.context() as patch:
                patch.setenv("QUEASY_URL", url)
                with pytest.raises(InvalidUrl, match=rf"\(QUEASY_URL {says}") as caught:
                    kind()
                assert "hunter2" not in str(caught.value)


WRONG_PARTS = [
    ("redis://h?ssl_ca_certs=ca.pem", r"ssl_ca_certs: expected rediss:// \(TLS\), got redis://"),
    ("unix:///s?ssl_keyfile=x", r"ssl_keyfile: expected rediss:// \(TLS\), got unix://"),
    ("valkey+cluster://h?ssl_certfile=x", r"expected valkeys\+cluster:// \(TLS\)"),
    ("redis://h?sentinel_password=x", r"sentinel_password: expected redis\+sentinel://"),
    ("redis://h:99999", "port: expected"),
    ("redis://h:port", "port: expected"),
    ("redis://h/x", "database: expected"),
    ("redis+sentinel://h/service/x", "database: expected"),
    ("redis://h?db=x", "database: expected"),
    ("redis://a..b", "host: expected"),
    ("unix://tmp/socket", "three slashes"),
    ("redis://h?socket_timeout=3", "option 'socket_timeout' is unknown"),
    ("redis://h?db=1&ssl_ca_cert=x", r"option number 2 .*did you mean ssl_ca_certs\?"),
]


@pytest.mark.parametrize(("url", "says"), WRONG_PARTS)
def test_wrong_part_of_a_url_is_named(url: str, says: str) -> None:
    for kind in (Client, SyncClient):
        with pytest.raises(InvalidUrl, match=says):
            kind(url)


PASSWORDS = ["abc/hunter2", "hunter2#x", "hunter2?x=1", "x?hunter2=1", "hun@ter2/x"]


@pytest.mark.parametrize("password", PASSWORDS)
def test_unescaped_password_is_not_shown(password: str) -> None:
    for url in (f"redis://:{password}@h:6379/0", f"redis+sentinel://u:{password}@h:1/s"):
        try:
            client = Client(url)
        except InvalidUrl as error:
            shown = str(error)
        else:
            shown = repr(client)
        assert "hunter2" not in shown
        assert "ter2" not in shown.replace("sentinel", "")


# What a URL means


MEANINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("redis://h", "h:6379", {}),
    ("redis://h:1/2", "h:1", {"db": 2}),
    ("redis://h?db=3", "h:6379", {"db": 3}),
    ("redis://", "localhost:6379", {}),
    ("valkey://h", "h:6379", {}),
    ("redis://[::1]:7", "[::1]:7", {}),
    ("redis://u:p%40%2F@h", "h:6379", {"username": "u", "password": "p@/"}),
    ("redis://:p@h", "h:6379", {"password": "p"}),
    ("unix:///tmp/s?password=p", "unix:///tmp/s", {"password": "p"}),
    ("redis+sentinel://a,b:1/name/4", "sentinel a:26379,b:1", {"db": 4}),
    ("redis+cluster://a,b:1", "cluster a:6379,b:1", {}),
    ("rediss://h?ssl_check_hostname=no", "h:6379", {"ssl_check_hostname": False}),
]


@pytest.mark.parametrize(("url", "shown", "connect"), MEANINGS)
def test_url_means_addresses_and_arguments_of_a_connection(
    url: str, shown: str, connect: dict[str, Any]
) -> None:
    target = parse_url(url)
    assert (str(target), target.connect) == (shown, connect)
    assert target.tls == url.startswith("rediss")


def test_sentinels_have_credentials_of_their_own() -> None:
    target = parse_url(
        "rediss+sentinel://u:p@h/name?sentinel_username=s&sentinel_password=t&ssl_ca_certs=ca"
    )
    assert target.service == "name"
    assert target.connect == {"username": "u", "password": "p", "ssl_ca_certs": "ca"}
    assert target.sentinel_connect == {"username": "s", "password": "t", "ssl_ca_certs": "ca"}


@pytest.mark.parametrize("url", [None, 5, b"redis://h"], ids=short)
def test_url_that_is_not_text_is_refused(url: Any) -> None:
    with pytest.raises(InvalidUrl, match=f"expected a str .* got {type(url).__name__}"):
        parse_url(url)
