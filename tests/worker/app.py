"""The application that worker tests run, in processes of its own.

The data of a job says what it does. Every run appends a line to a journal when it starts and when
it ends: a file outside of the server, which keeps what the server forgets.
"""

import asyncio
import ctypes
import json
import os
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from queasy import Client, Failure, Job, JobError, Retry

client = Client(os.environ["TEST_URL"], prefix=os.environ["TEST_PREFIX"])
JOURNAL = os.open(os.environ["TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


LEAKED: list[bytearray] = []


def note(event: str, job: Job, **more: Any) -> None:
    line = {
        "event": event, "queue": job.queue, "id": job.id, "token": job.token, "pid": os.getpid(),
        "at": time.monotonic(), "retries": job.retry_count, "stalls": job.stall_count,
        "timeouts": job.timeout_count, **more,
    }  # fmt: skip
    os.write(JOURNAL, json.dumps(line).encode() + b"\n")


def act(data: Any, job: Job) -> Any:
    """Everything that a job may do to its process."""
    match data:
        case {"sleep": seconds}:
            time.sleep(seconds)
        case {"gil": seconds}:
            ctypes.PyDLL(None).sleep(int(seconds))  # PyDLL does not release the GIL
        case {"native": seconds}:
            ctypes.CDLL(None).sleep(int(seconds))  # it releases the GIL, and cannot be interrupted
        case {"spin": seconds}:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
        case {"until": path}:
            while not Path(path).exists():
                time.sleep(0.02)
        case {"tick": seconds}:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                try:
                    note("tick", job)
                    time.sleep(0.02)
                except BaseException:  # an interrupt
                    if "deaf" not in data:
                        raise
        case {"spawn": seconds}:
            process = subprocess.Popen(["sleep", str(seconds)], close_fds="leaky" not in data)
            note("spawned", job, spawned=process.pid)
            if "busy" in data:
                ctypes.PyDLL(None).sleep(int(seconds))  # holds the GIL
            process.wait()
        case {"orphan": True}:
            command = ["sh", "-c", "sleep 0.1 & echo $!"]
            note("orphaned", job, orphan=subprocess.check_output(command).decode())
        case {"rename": True}:
            ctypes.CDLL(None).prctl(15, "mail-zustelle\u00e4\u00e4".encode()[:15], 0, 0, 0)
            time.sleep(60)
        case {"leak": megabytes}:
            LEAKED.append(bytearray(os.urandom(1)) * (megabytes * 2**20))
        case {"exit": code}:
            os._exit(code)
        case {"signal": name}:
            os.kill(os.getpid(), getattr(signal, name))
            time.sleep(60)
        case {"bomb": megabytes}:
            hoard = [bytearray(os.urandom(1)) * 2**20 for _ in range(megabytes)]
            time.sleep(60)
            del hoard
        case {"raise": message}:
            raise RuntimeError(message)
        case {"retry": after}:
            return Retry("later", after=after) if not job.retry_count else None
        case {"fail": message}:
            return Failure(message)
        case _:
            pass
    return None


plain = client.queue("plain")
waits = client.queue("waits")
timed = client.queue("timed")
poison = client.queue("poison")
high = client.queue("high")
low = client.queue("low")
whole = client.queue("whole")
small = client.queue("small")
crowd = [client.queue(f"crowd-{n}") for n in range(15)]


def this_time(data: Any, job: Job) -> Any:
    """What to do in this run: {"first": …} in the first, {"then": …} in later ones."""
    if not isinstance(data, dict) or "first" not in data:
        return data
    again = job.retry_count + job.stall_count + job.timeout_count + job.suspect
    return data.get("then") if again else data["first"]


def journalled(data: Any, job: Job) -> Any:
    data = this_time(data, job)
    note("start", job, data=data)
    result = act(data, job)
    note("end", job, data=data)
    return result


async def _act_later(data: Any, job: Job) -> Any:
    return act(data, job)


def cut_off() -> None:
    """Nothing that this process sends from now on arrives anywhere."""
    with Path(os.devnull).open("wb") as nothing:
        for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            with suppress(OSError):  # the folder itself is closed by now
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    os.dup2(nothing.fileno(), number)


async def journalled_async(data: Any, job: Job) -> Any:
    data = this_time(data, job)
    note("start", job, data=data)
    if isinstance(data, dict) and "sleep" in data:
        try:
            await asyncio.sleep(data["sleep"])
        except asyncio.CancelledError:
            note("cancelled", job, asked=job.cancelled)
            raise
        result = None
    elif isinstance(data, dict) and "await" in data:
        while not Path(data["await"]).exists():
            await asyncio.sleep(0.02)
        result = None
    elif isinstance(data, dict) and "subtask" in data:
        result = await asyncio.create_task(_act_later(data["subtask"], job))
    elif isinstance(data, dict) and "exit_after" in data:
        cut_off()  # or a dequeue that is about to be sent reports this run before the process ends
        asyncio.get_running_loop().call_soon(os._exit, data["exit_after"])
        result = None
    else:
        result = act(data, job)
    note("end", job, data=data)
    return result


def gave_up(data: Any, job: Job, error: JobError) -> None:
    note("gave up", job, kind=error.kind, message=error.message)


plain.handler(timeout=60, max_retries=3, min_backoff=0.1)(journalled)
waits.handler(timeout=60, min_backoff=0.1)(journalled_async)
timed.handler(timeout=2, max_timeouts=3, min_backoff=0.1)(journalled)
poison.handler(timeout=60, size=2, min_backoff=0.1)(journalled)
high.handler(priority=200, size=25)(journalled)
low.handler(priority=100, size=25)(journalled)
whole.handler(size=100)(journalled)
small.handler(size=1)(journalled)
for queue in (plain, timed, poison):
    queue.fail_handler(gave_up)
for queue in crowd:
    queue.handler(journalled_async)
