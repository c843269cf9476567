"""Parses the URL of a server; errors and texts never show its secrets."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import ParseResult, parse_qs, unquote, urlparse

from queasy.errors import InvalidUrl

__all__ = ["Address", "Target", "parse_url", "target_of"]

FORMS = (
    "redis://host:6379/0, rediss://host:6379/0 (TLS), unix:///path/to/socket, "
    "redis+sentinel://host:26379,host:26379/service, redis+cluster://host:6379,host:6379"
)


ESCAPE = "write / # ? @ : in a user or password as %2F %23 %3F %40 %3A"


def _is_yes(text: str) -> bool:
    return text.lower() in ("1", "true", "yes")


def _certificate_use(text: str) -> str:
    if text not in ("none", "optional", "required"):
        raise InvalidUrl("url: ssl_cert_reqs: expected none, optional or required")
    return text


def _database(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidUrl(f"url: database: expected a number, as in /0; {ESCAPE}") from None


# URL options of redis-py that Queasy does not have.
OF_REDIS_PY = {
    "health_check_interval", "legacy_responses", "max_connections", "protocol", "retry_on_error",
    "retry_on_timeout", "socket_connect_timeout", "socket_keepalive", "socket_read_size",
    "socket_timeout", "ssl_exclude_verify_flags", "ssl_include_verify_flags", "ssl_min_version",
    "timeout",
}  # fmt: skip

# URL options, and how the text of each is converted. The names are those of redis-py.
CONVERT: dict[str, Any] = {
    "db": _database,
    "ssl_check_hostname": _is_yes,
    "ssl_cert_reqs": _certificate_use,
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "username": str,
    "password": str,
    "sentinel_username": str,
    "sentinel_password": str,
}


class Address(NamedTuple):  # looked up for every call, and hashed faster than a dataclass
    """One server process: a host and a port, or a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """The content of a URL."""

    kind: Literal["single", "sentinel", "cluster", "embedded"]
    addresses: tuple[Address, ...] = ()
    service: str = ""
    tls: bool = False
    connect: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The settings of connections to data servers: user, password, db, TLS files."""
    sentinel_connect: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    folder: str = ""
    """The folder of an embedded server."""

    def __str__(self) -> str:
        if self.kind == "embedded":
            return f"the embedded server in {self.folder}" if self.folder else "the embedded server"
        where = ",".join(map(str, self.addresses))
        return where if self.kind == "single" else f"{self.kind} {where}"


def target_of(url: str | None, folder: Path | None) -> Target:
    """The target of a URL; without a URL, the embedded server of a folder."""
    return Target("embedded", folder=str(folder or "")) if url is None else parse_url(url)


def parse_url(url: str) -> Target:
    """The target of a URL; raises InvalidUrl, without the URL's secrets, when it is not valid."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidUrl(f"url: expected a str like {FORMS}, got {type(url).__name__}")
    try:
        return _parse(urlparse(url))
    except InvalidUrl:
        raise
    except ValueError:
        # The URL is not quoted: a password with a / or # in it may be in any of the parts.
        raise InvalidUrl(f"url: expected one of {FORMS}; {ESCAPE}") from None


def _parse(parts: ParseResult) -> Target:
    connect = _connect_arguments(parts)
    scheme, _, form = parts.scheme.partition("+")
    _check_fit(connect, scheme, form)
    if scheme == "unix" and not form:
        return _unix(parts, connect)
    if scheme not in ("redis", "rediss", "valkey", "valkeys") or form not in (
        "",
        "sentinel",
        "cluster",
    ):
        raise InvalidUrl(f"url: expected one of {FORMS}; got another scheme")
    tls = scheme in ("rediss", "valkeys")
    if form == "sentinel":
        return _sentinel(parts, connect, tls)
    addresses = _addresses(parts, 6379)
    path = parts.path.strip("/")
    if path:
        connect["db"] = _database(path)
    if form == "cluster":
        if connect.pop("db", 0) != 0:
            raise InvalidUrl("url: a cluster has database 0 only")
        return Target("cluster", addresses, tls=tls, connect=connect)
    if len(addresses) != 1:
        raise InvalidUrl(f"url: expected one host, got {len(addresses)}; for several use {FORMS}")
    return Target("single", addresses, tls=tls, connect=connect)


def _check_fit(connect: dict[str, Any], scheme: str, form: str) -> None:
    """Raises if an option is for another kind of URL."""
    suffix = f"+{form}" if form in ("sentinel", "cluster") else ""
    plain = f"{scheme}{suffix}://"
    for name in connect:
        if name.startswith("ssl_") and scheme in ("redis", "valkey", "unix"):
            secure = "valkeys" if scheme == "valkey" else "rediss"
            raise InvalidUrl(f"url: {name}: expected {secure}{suffix}:// (TLS), got {plain}")
        if name.startswith("sentinel_") and form != "sentinel":
            raise InvalidUrl(f"url: {name}: expected redis+sentinel://host:26379/service")


def _unix(parts: ParseResult, connect: dict[str, Any]) -> Target:
    path = unquote(parts.path)
    if not path or "\0" in path:
        raise InvalidUrl(f"url: expected unix:///path/to/socket, got no path; {ESCAPE}")
    if parts.netloc.rpartition("@")[2]:  # for example, the start of a password with a /
        raise InvalidUrl(f"url: expected unix:///path (three slashes), got a host; {ESCAPE}")
    return Target("single", (Address(path=path),), connect=connect)


def _sentinel(parts: ParseResult, connect: dict[str, Any], tls: bool) -> Target:
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise InvalidUrl("url: expected redis+sentinel://host:26379/service, got no service name")
    if db:
        connect["db"] = _database(db)
    own = {
        name.removeprefix("sentinel_"): connect.pop(name)
        for name in ("sentinel_username", "sentinel_password")
        if name in connect
    }
    # Sentinels and servers use the same certificate authority.
    own |= {name: value for name, value in connect.items() if name.startswith("ssl_")}
    addresses = _addresses(parts, 26379)
    return Target("sentinel", addresses, unquote(service), tls, connect, own)


def _connect_arguments(parts: ParseResult) -> dict[str, Any]:
    connect: dict[str, Any] = {}
    options = parse_qs(parts.query, keep_blank_values=True)
    for number, (name, values) in enumerate(options.items(), 1):
        if name not in CONVERT:
            raise InvalidUrl(_unknown_option(name, number))
        connect[name] = CONVERT[name](values[-1])
    user_info = parts.netloc.rpartition("@")[0]
    if user_info:
        user, colon, password = user_info.partition(":")
        if user:
            connect["username"] = unquote(user)
        if colon:
            connect["password"] = unquote(password)
    return connect


def _unknown_option(name: str, number: int) -> str:
    """The message for an unknown option. It is not quoted, because it may be the end of a password
    with a ? or & in it, unless it is a known name.
    """
    shown = f"{name!r}" if name in OF_REDIS_PY else f"number {number}"
    likely = difflib.get_close_matches(name, CONVERT, 1)
    guess = f" (did you mean {likely[0]}?)" if likely else ""
    return f"url: option {shown} is unknown{guess}; expected {', '.join(sorted(CONVERT))}"


def _addresses(parts: ParseResult, default_port: int) -> tuple[Address, ...]:
    hosts = parts.netloc.rpartition("@")[2]
    found: list[Address] = []
    for entry in hosts.split(",") if hosts else ["localhost"]:
        one = urlparse(f"//{entry}")  # knows IPv6 in brackets
        if not one.hostname or not one.hostname.isprintable():
            raise InvalidUrl(f"url: expected host:port; {ESCAPE}")
        try:
            one.hostname.encode("idna")
        except ValueError:
            raise InvalidUrl("url: host: expected a name that a resolver takes") from None
        try:
            port = one.port
        except ValueError:
            raise InvalidUrl(f"url: port: expected a number up to 65535; {ESCAPE}") from None
        found.append(Address(one.hostname, port or default_port))
    return tuple(found)
