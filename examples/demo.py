"""The tour of Queasy, on a server of its own: about 20,000 jobs, with kills and hangs.

    python examples/demo.py                              # what `make demo` runs
    python examples/demo.py --picture docs/images/demo.svg

`--picture` also saves the last screen of the tour as an SVG file. The README shows it.

Read the files in this order: tour/app.py has the queues and their handlers, tour/acts.py has what
the tour does with them, tour/promises.py checks the results, and tour/guide.py runs all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

try:
    from rich.console import Console
except ImportError:
    sys.exit("The tour needs rich: run `pip install rich`, or run `make demo`, which installs it.")


def main() -> int:
    """The exit code of the tour: 0 if every promise was kept."""
    parser = argparse.ArgumentParser(description="A tour of Queasy that checks its promises.")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="save the last screen as an SVG file"
    )
    picture: Path | None = parser.parse_args().picture
    if picture is not None:
        picture = picture.absolute()  # the tour changes to a folder of its own
    home = tempfile.TemporaryDirectory(prefix="queasy-tour-", ignore_cleanup_errors=True)
    with home as folder, contextlib.chdir(folder):
        # Seconds that the embedded server stays after the last client disconnects.
        os.environ["QUEASY_EMBEDDED_IDLE"] = "0.5"
        # Imported here because a client uses the folder in which it is created.
        from tour.guide import guide

        return asyncio.run(guide(Console(highlight=False), picture))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nInterrupted. The workers were stopped, and their server stops with them.")
        sys.exit(130)
