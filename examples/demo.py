"""The tour of Queasy, on a server of its own: some 20,000 jobs, and all that can go wrong.

What to read, in this order: tour/app.py has the queues and their handlers, tour/acts.py what is
done with them, tour/promises.py what must come of it; tour/guide.py puts them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile

try:
    from rich.console import Console
except ImportError:
    sys.exit("The tour is drawn with rich: `pip install rich`, or `make demo`, which sees to it.")


def main() -> int:
    """Everybody who works in this folder shares the embedded server in it."""
    home = tempfile.TemporaryDirectory(prefix="queasy-tour-", ignore_cleanup_errors=True)
    with home as folder, contextlib.chdir(folder):
        os.environ["QUEASY_EMBEDDED_IDLE"] = "0.5"  # seconds it stays when nobody is connected
        # Only now: a client means the folder in which it is made.
        from tour.guide import guide

        return asyncio.run(guide(Console(highlight=False)))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nInterrupted: the workers were stopped, and their server ends with them.")
        sys.exit(130)
