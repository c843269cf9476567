"""The promises of the library: functions that are named for what they prove."""

from collections.abc import Callable

from tests.store.harness import Harness

Promise = Callable[[Harness], None]
PROMISES: dict[str, Promise] = {}


def promise(function: Promise) -> Promise:
    PROMISES[function.__name__] = function
    return function
