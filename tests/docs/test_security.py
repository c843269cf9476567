"""Every URL in the security guide is parsed as the guide describes it."""

import re
from pathlib import Path

import pytest

from queasy import InvalidUrl
from queasy.store.net.url import parse_url

SECURITY = (Path(__file__).parents[2] / "docs" / "guides" / "security.md").read_text()
URLS = re.findall(r"^(?:rediss?|unix)\S*://\S+$", SECURITY, re.M)


def test_guide_shows_urls() -> None:
    assert len(URLS) >= 8


@pytest.mark.parametrize("url", URLS)
def test_url_in_the_guide_means_what_it_says(url: str) -> None:
    target = parse_url(url)
    assert target.tls == url.startswith("rediss")
    assert ("sentinel" in url, "cluster" in url) == (
        target.kind == "sentinel",
        target.kind == "cluster",
    )
    if "worker:secret@" in url:
        assert (target.connect["username"], target.connect["password"]) == ("worker", "secret")
    if "sentinel_username" in url:
        assert target.sentinel_connect == {"username": "watcher", "password": "secret"}
    if target.tls:
        assert target.connect["ssl_ca_certs"] == "/etc/ssl/queasy/ca.pem"
    assert "secret" not in f"{target} {target!r}"


def test_unescaped_password_in_a_socket_url_raises_how_to_write_it() -> None:
    with pytest.raises(InvalidUrl, match="%23"):
        parse_url("unix://worker:sec#ret@/run/redis/redis.sock")
