"""The Lua library on the server: flushed, older, newer."""

from queasy import Client
from queasy.store.library import PREFIX
from tests.servers import ServerKind, start_server


async def test_flushed_library_is_loaded_again(client: Client, server: object) -> None:
    queue = client.queue("q")
    await queue.dispatch(1)
    server.client().function_flush()  # type: ignore[attr-defined]
    await queue.dispatch(2)
    assert (await queue.counts()).waiting == 2


async def test_older_library_is_replaced_and_a_newer_one_kept(kind: ServerKind) -> None:
    from queasy.store import library

    current = library.source()
    stamp = f"local VERSION = {{ 1, {library.revision()} }}"
    assert stamp in current
    with start_server(kind) as server, server.client() as connection:
        for revision, kept in ((0, False), (library.revision() + 7, True)):
            other = current.replace(stamp, f"local VERSION = {{ 1, {revision} }}")
            connection.function_load(other, replace=True)
            async with Client(server.url) as client:
                await client.queue("q").dispatch(1)
            _, found = connection.fcall(f"{PREFIX}version", 0)
            assert found == (revision if kept else library.revision())
