"""The settings of a client object of redis-py or valkey-py, as a URL. It imports neither of them.

Only the settings are taken: Queasy opens connections of its own. A setting that a URL of Queasy
cannot express is refused if it decides which server answers, as whom, or how it is verified. The
rest (timeouts, retries, encodings) belongs to the object's own connections.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import quote, urlencode

from queasy.errors import InvalidOption
from queasy.store.net.url import Address

__all__ = ["url_of_client"]

PACKAGES = ("redis", "valkey")
TLS_SETTINGS = (
    "ssl_cert_reqs", "ssl_check_hostname", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile",
)  # fmt: skip
# Settings of connections over TLS that may weaken or replace the verification of the certificate.
NO_TLS_SETTINGS = (
    "ssl_ca_data", "ssl_ca_path", "ssl_password", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled",
    "ssl_ocsp_context", "ssl_ocsp_expected_cert", "ssl_min_version", "ssl_ciphers",
    "ssl_include_verify_flags", "ssl_exclude_verify_flags",
)  # fmt: skip
CERTIFICATE_USES = {
    None: "none",
    ssl.CERT_NONE: "none",
    ssl.CERT_OPTIONAL: "optional",
    ssl.CERT_REQUIRED: "required",
}
# Where neither the object nor its class says how to verify a certificate.
STRICT = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
INSTEAD = "Give Queasy a URL instead, as in Client('rediss://user:password@host:6379/0')"


def url_of_client(given: object) -> str:
    """The URL of the server, Sentinel service or cluster for which this object is a client.

    Raises InvalidOption, without secrets, if it is another object or has other settings.
    """
    nodes = getattr(given, "nodes_manager", None)
    if nodes is not None:
        return _cluster(given, nodes)
    if hasattr(given, "master_for"):
        raise InvalidOption(
            "connection: expected a client, got a Sentinel, which may know several services: pass "
            "connection=sentinel.master_for('service')"
        )
    pool = getattr(given, "connection_pool", given)
    settings = getattr(pool, "connection_kwargs", None)
    kind = getattr(pool, "connection_class", None)
    if not isinstance(settings, Mapping) or not isinstance(kind, type):
        raise InvalidOption(
            "connection: expected a client of redis-py or valkey-py (Redis, Valkey, sync or "
            f"asyncio), got {type(given).__name__}. {INSTEAD}"
        )
    found = _Settings(cast("Mapping[str, Any]", settings), kind)
    if found.get("redis_connect_func") or found.get("valkey_connect_func"):
        raise _refused("a function that it calls for each new connection")
    if hasattr(pool, "sentinel_manager"):
        return _sentinel(pool, found)
    if "path" in settings:
        query = {"db": found.get("db") or 0}
        return f"unix://{found.user_info}{quote(str(found.get('path')))}?{urlencode(query)}"
    where = found.address()
    return f"{found.scheme}://{found.user_info}{where}/{found.get('db') or 0}{found.tls_query}"


class _Settings:
    """The settings of one kind of connection. Every setting that is read is checked."""

    def __init__(self, settings: Mapping[str, Any], kind: type | None) -> None:
        self._settings = settings
        self._kind = kind
        if kind is not None and kind.__module__.partition(".")[0] not in PACKAGES:
            # It may connect to another place, or to none, as that of fakeredis does.
            raise _refused(f"a class of connections from another package, {kind.__module__}")
        names = [one.__name__ for one in kind.__mro__] if kind is not None else []
        self.tls = any("SSL" in name for name in names) or bool(settings.get("ssl"))
        if settings.get("credential_provider") is not None:
            raise _refused("a credential_provider")
        for name in NO_TLS_SETTINGS if self.tls else ():
            if settings.get(name):
                raise _refused(name)

    def get(self, name: str) -> Any:
        """A setting, or the default of its class: it depends on the version of the package."""
        if name in self._settings:
            return self._settings[name]
        for one in self._kind.__mro__ if self._kind is not None else ():
            parameters = inspect.signature(one.__init__).parameters
            if name in parameters:
                return parameters[name].default
        return STRICT.get(name)

    @property
    def scheme(self) -> str:
        return "rediss" if self.tls else "redis"

    @property
    def user_info(self) -> str:
        """User and password, escaped, with an @; empty if there are none."""
        user, password = (_text(self.get(name), name) for name in ("username", "password"))
        if not user and not password:
            return ""
        return f"{quote(user, safe='')}:{quote(password, safe='')}@"

    def address(self) -> Address:
        return Address(
            _text(self.get("host") or "localhost", "host"), int(self.get("port") or 6379)
        )

    @property
    def tls_settings(self) -> dict[str, str]:
        """How a certificate is verified, and which is shown to the server, as in a URL."""
        if not self.tls:
            return {}
        found = {name: self.get(name) for name in TLS_SETTINGS}
        use = found["ssl_cert_reqs"]
        found["ssl_cert_reqs"] = CERTIFICATE_USES.get(use, use)
        found["ssl_check_hostname"] = "yes" if found["ssl_check_hostname"] else "no"
        return {name: str(value) for name, value in found.items() if value}

    @property
    def tls_query(self) -> str:
        return f"?{urlencode(self.tls_settings)}" if self.tls else ""


def _sentinel(pool: Any, primary: _Settings) -> str:
    if not pool.is_master:
        raise InvalidOption(
            "connection: expected a client of the primary, got one of replicas, which take no "
            "writes: pass connection=sentinel.master_for('service')"
        )
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    sentinels = [_Settings(one.connection_kwargs, one.connection_class) for one in pools]
    if any(one.tls_settings != primary.tls_settings for one in sentinels):
        raise InvalidOption(
            "connection: expected the same TLS settings for the sentinels and the servers (as "
            "sentinel_kwargs and as arguments of Sentinel), got different ones"
        )
    query = dict(primary.tls_settings)
    for name in ("username", "password"):
        if value := _text(sentinels[0].get(name), name):
            query[f"sentinel_{name}"] = value
    where = _joined(one.address() for one in sentinels)
    path = f"{quote(str(pool.service_name), safe='')}/{primary.get('db') or 0}"
    return f"{primary.scheme}+sentinel://{primary.user_info}{where}/{path}?{urlencode(query)}"


def _cluster(given: object, nodes: Any) -> str:
    if getattr(nodes, "address_remap", None) is not None:
        raise _refused("address_remap")
    settings: Mapping[str, Any] = nodes.connection_kwargs
    found = _Settings(settings, settings.get("connection_class"))
    where = _joined(Address(node.host, node.port) for node in nodes.startup_nodes.values())
    return f"{found.scheme}+cluster://{found.user_info}{where}{found.tls_query}"


def _joined(addresses: Iterable[Address]) -> str:
    return ",".join(map(str, addresses))


def _text(value: object, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidOption(
            f"connection: {name}: expected a str, got {type(value).__name__}. {INSTEAD}"
        )
    return value


def _refused(what: str) -> InvalidOption:
    return InvalidOption(f"connection: it has {what}, which Queasy cannot use. {INSTEAD}")
