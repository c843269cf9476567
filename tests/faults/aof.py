"""The append-only file of a server."""

from pathlib import Path

from tests.servers import Server


def file_of(server: Server) -> Path:
    """The append-only file that the server currently writes."""
    folder = server.directory / "appendonlydir"
    (file,) = folder.glob("*.incr.aof")
    return file
