"""A server that is busy with a script that never returns."""

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import redis

from tests.servers import Server

LOOP = "#!lua name=loop\nredis.register_function('loop', function() while true do end end)"


@contextmanager
def looping(server: Server, way: str) -> Generator[None]:
    command = ("EVAL", "while true do end", 0) if way == "script" else ("FCALL", "loop", 0)
    if way == "function":
        server.call("FUNCTION", "LOAD", "REPLACE", LOOP)

    def loop() -> None:
        with server.client(socket_timeout=60) as client, suppress(redis.ResponseError):
            client.execute_command(*command)  # until it is killed

    thread = threading.Thread(target=loop)
    thread.start()
    yield
    with server.client() as client:
        client.execute_command("SCRIPT" if way == "script" else "FUNCTION", "KILL")
    thread.join()
