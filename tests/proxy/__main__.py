"""The proxy as a program: see `tests/proxy/__init__.py`."""

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

from tests.proxy import Proxy


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.proxy")
    for name in ("--listen-port", "--upstream-port", "--seed"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--control", type=Path, required=True)
    options = parser.parse_args()

    async def steer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers each line when it is in effect: ok, or the problem."""
        while line := await reader.readline():
            try:
                proxy.obey(line.decode())
                writer.write(b"ok\n")
            except ValueError as problem:
                print(problem, file=sys.stderr, flush=True)
                writer.write(f"{problem}\n".encode())
        writer.close()

    async with (
        Proxy(options.upstream_port, options.listen_port, options.seed) as proxy,
        await asyncio.start_unix_server(steer, options.control) as control,
    ):
        await control.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        uvloop.run(main())
