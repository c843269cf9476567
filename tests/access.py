"""The user and transport with which Queasy reaches test servers: `--as worker`, `--tls`.

Chosen once, when pytest starts. Every server started afterwards has the user and speaks TLS, and
every URL that a test passes to Queasy (`Server.url`, `Cluster.url`, `Proxy.url` …) uses them.
Tests themselves (`Server.client`, `Server.call`) connect as administrators, over the server's
unix socket.
"""

import functools
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

PERMISSIONS = Path(__file__).parents[1] / "docs" / "guides" / "security.md"
PASSWORD = "secret"


def documented_rules(user: str) -> list[str]:
    """The ACL rules that docs/guides/security.md gives this user."""
    rules = re.search(rf"^ACL SETUSER {user} (.*)$", PERMISSIONS.read_text(), re.M)
    assert rules is not None, f"{PERMISSIONS.name} has no user {user}"
    return rules[1].split()


def documented_extras(when: str) -> list[str]:
    """The ACL rules that docs/guides/security.md adds in this case."""
    rules = re.search(rf"{when} add `(.*?)`", PERMISSIONS.read_text(), re.IGNORECASE)
    assert rules is not None, f"{PERMISSIONS.name} does not say what to add {when}"
    return rules[1].split()


@dataclass
class Access:
    user: str | None = None
    tls: bool = False

    @property
    def credentials(self) -> str:
        """The part of a URL before the host."""
        return f"{self.user}:{PASSWORD}@" if self.user else ""

    def settings(self, tls_port: int, *, cluster: bool, waitaof: bool) -> dict[str, str | int]:
        """Lines of a server's config file, so that they survive a restart."""
        found: dict[str, str | int] = {}
        if tls_port:
            found |= self.certificate.settings(tls_port)
        if self.user:
            rules = documented_rules(self.user)
            rules += documented_extras("on a cluster") if cluster else []
            rules += documented_extras('for `"fsynced"`') if waitaof else []
            # Tests have many prefixes. Keys and channels of other forms stay forbidden.
            anywhere = [re.sub(r"^(\S*[~&])queasy:\*$", r"\1*:{*", rule) for rule in rules]
            found["user"] = " ".join([self.user, *anywhere])
        return found

    @functools.cached_property
    def certificate(self) -> "Signed":
        self._folder = tempfile.TemporaryDirectory(
            prefix="queasy-tls-"
        )  # removed when the process ends
        return Certificates(Path(self._folder.name)).sign("server")


class Certificates:
    """A certificate authority of the tests, and the certificates it signs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "ca.pem"
        _openssl(
            "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", "/CN=queasy tests",
            "-keyout", folder / "ca.key", "-out", self.authority,
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def sign(self, name: str, hosts: str = "DNS:localhost,IP:127.0.0.1", days: int = 2) -> "Signed":
        """A key and its certificate; with negative days an expired one."""
        key, cert = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={hosts}\n")
        _openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.authority, "-CAkey", self.folder / "ca.key",
            "-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", cert,
        )  # fmt: skip
        return Signed(key, cert, self.authority)


@dataclass(frozen=True)
class Signed:
    key: Path
    cert: Path
    authority: Path

    def settings(self, port: int, *, clients: bool = False) -> dict[str, str | int]:
        """Lines of a server's config file; with `clients` it requires client certificates."""
        return {
            "tls-port": port,
            "tls-cert-file": str(self.cert),
            "tls-key-file": str(self.key),
            "tls-ca-cert-file": str(self.authority),
            "tls-auth-clients": "yes" if clients else "no",
        }


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@functools.cache
def why_no_tls(binary: Path) -> str | None:
    """The reason to skip a test over TLS on this server; None if there is none."""
    if shutil.which("openssl") is None:
        return "no openssl to make certificates with: TLS NOT TESTED"
    tried = subprocess.run(  # it never starts so; its message shows whether it knows TLS
        [binary, "--port", "0", "--tls-port", "1", "--tls-cert-file", "absent", "--save", ""],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    if "Failed to configure TLS" in tried.stdout:
        return None
    return f"{binary.name} was built without TLS: NOT TESTED"


access = Access()
