"""Commands that no public method sends: a batch for a named client, leases ended by their token.

The only place where tests reach for the store of a queue.
"""

from typing import Any

from queasy.store.command import Command
from queasy.store.commands import QueueCommands


def commands_of(queue: Any) -> QueueCommands:
    """The commands of a `Queue` or `SyncQueue`."""
    return QueueCommands(queue.keys, queue.codec)


def run(queue: Any, command: Command[Any]) -> Any:
    """Sends a command as this queue sends its own: to be awaited if its client is async."""
    return queue._store.run(command)


def lease_of(queue: Any, job: Any) -> Any:
    """A lease of a job that this queue did not take itself."""
    from queasy.lease import Lease
    from queasy.sync import SyncLease, SyncQueue

    kind = SyncLease if isinstance(queue, SyncQueue) else Lease
    return kind(job, commands_of(queue), queue._store)
