"""What is measured of Queasy alone, next to the least that the server makes possible."""

from benchmarks.ours import bare, drains, endings, payloads, start, wakeup

OURS = {
    "drains": drains.run,
    "endings": endings.run,
    "payloads": payloads.run,
    "bare": bare.run,
    "wakeup": wakeup.run,
    "start": start.run,
}
