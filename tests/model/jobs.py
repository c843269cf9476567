"""The jobs of the model: dispatch, cancel, the end of a run, and the failed and broken records.

Dispatches blocked by a run are kept as a list, which is replayed when the job waits again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model.clock import Clock
from tests.model.values import Call, Dispatch, Held, Item, Job, Run, Waiter

DEFAULTS = {
    "max_retries": 10, "max_stalls": 3, "max_timeouts": 3, "max_expiries": 2**31,
    "min_backoff": 2_000, "max_backoff": 300_000,
}  # fmt: skip
BYTES = 2 * 2**20  # of payloads that one call handles; the job that exceeds it is included
STALLS = {"stall", "death"}  # its client sent no heartbeat, or its supervisor saw it die
WAITS_AGAIN = {"release", "retry", "timeout", "expiry"} | STALLS
RAN_OUT = STALLS | {"expiry"}  # endings that bring an error of their own
UNLIMITED = 2**31
ENDED = {"finish": "finished", "cancel": "cancelled", "broken": "broken", "fail": "failed"}

# Milliseconds: how often the time of a caller is recorded, and when a caller is forgotten.
RECORD_CALLER_EVERY, CALLER_GONE = 60_000, 600_000
# A waiter that should have polled this many milliseconds ago keeps no time.
OVERDUE = 2_000
REFUSED = "refused"
UNAFFECTED = {"exists", "active", "absent"}  # dispatches for jobs in another state
Number = tuple[str, int] | None
"""A caller, and the number of its call."""


class Jobs(Clock):
    """Waiting and active jobs, and records, without the clients that run them."""

    def __init__(self, fail: Jobs | None = None) -> None:
        super().__init__()
        self.fail = fail
        self.waiting: dict[str, Job] = {}
        self.active: dict[str, Run] = {}
        self.waiters: dict[str, Waiter] = {}
        self.calls: dict[str, Call] = {}
        self.records: dict[str, dict[str, tuple[dict[str, Any], bytes]]]
        self.records = {"failed": {}, "broken": {}}  # oldest first
        self.settings: dict[str, Any] = {}
        self.stats: dict[str, int] = {}

    # Side effects of a call

    def open(self, now: float) -> None:
        super().open(now)
        self.new_due = self.new_suspects = self.fail_opened = False
        self.recorded = 0
        self.finished: list[str] = []

    def count(self, kind: str, n: int = 1) -> None:
        self.stats[kind] = self.stats.get(kind, 0) + n

    def announce(self, run_at: float, companions: int | None = None) -> None:
        """Note that this call added a job with this run_at."""
        if companions == 0:
            self.new_suspects = self.new_suspects or run_at <= self.time
        else:
            self.new_due = self.new_due or run_at <= self.time

    def wake_for_suspects(self) -> None:
        """Wake the waiters that run nothing else."""
        self.waiters = {name: waiter for name, waiter in self.waiters.items() if waiter.beside}

    def next_event(self, leases: bool = True, passed: bool = False) -> float | None:
        """When the next job is due or, with `leases`, the next lease expires. With `passed`, jobs
        that are due already do not count.
        """
        waiting = [] if self.settings.get("paused") else self.waiting.values()
        times = [job.run_at for job in waiting if not passed or job.run_at > self.time]
        return min(times, default=None)

    def wake(self, leases: bool = True) -> None:
        """Wake waiters if there is a due job, or an event before two of them poll.

        No process subscribes in these tests, so no waiter answers, and the server tries them all.
        """
        order = sorted((job.run_at, id_.encode(), id_) for id_, job in self.waiting.items())
        at = self.next_event(
            leases, bool(order) and self.waiting[order[0][2]].companions is not None
        )
        paused = self.settings.get("paused")
        if self.new_due and not paused:
            self.waiters.clear()
        if self.new_suspects and not paused:
            self.wake_for_suspects()
        if at is not None and at > self.time:
            self.keep_time(at)
        fail = self.fail
        if fail and self.fail_opened and fail.new_due and not fail.settings.get("paused"):
            fail.waiters.clear()

    def keep_time(self, at: float) -> None:
        """Ask waiters to poll by `at` if fewer than two do. Each of them is a host of its own."""
        last = at + 1  # waiters sleep for whole milliseconds
        polls = [waiter.at for waiter in self.waiters.values()]
        if sum(self.now - OVERDUE <= poll <= last for poll in polls) < 2:
            in_time = {name: waiter for name, waiter in self.waiters.items() if waiter.at <= last}
            self.waiters = in_time

    # Dispatch and cancel

    def dispatch(self, now: float, items: Sequence[Item], call: Number = None) -> list[str] | str:
        self.open(now)
        if before := self.answered(call, items):
            return before
        replies = [self.dispatch_one(item) for item in items]
        self.keep_call(call, replies)
        self.write()
        self.wake(leases=False)
        return replies

    def answered(self, call: Number, things: Sequence[Any]) -> list[str] | str | None:
        """The reply to a repeated call: that of the last call again; an older call is refused."""
        last = self.calls.get(call[0]) if call else None
        if not call or not last or call[1] > last.number:
            return None
        same = call[1] == last.number and len(things) == len(last.replies)
        return last.replies if same else REFUSED

    def keep_call(self, call: Number, replies: list[str]) -> None:
        if call:
            caller, number = call
            noted = self.record_caller(caller, self.calls.get(caller))
            self.calls[caller] = Call(number, noted, replies)

    def record_caller(self, caller: str, last: Call | None) -> float:
        """The time to record for a caller. A new time also removes some callers that are gone."""
        if last and abs(self.now - last.noted) <= RECORD_CALLER_EVERY:
            return last.noted
        gone = [c for c in self.calls if self.calls[c].noted <= self.now - CALLER_GONE]
        for one in sorted(gone, key=lambda c: (self.calls[c].noted, c))[:100]:
            del self.calls[one]
        return self.now

    def dispatch_one(self, item: Item) -> str:
        run_at = self.schedule(item.when)
        status = self.accept(item.id, Dispatch(item, self.time, run_at))
        if status not in UNAFFECTED:
            self.count("dispatched" if status == "created" else status)
        if status in ("created", "updated"):
            self.announce(self.waiting[item.id].run_at)
        return status

    def accept(self, id_: str, dispatch: Dispatch) -> str:
        run, job = self.active.get(id_), self.waiting.get(id_)
        if (run or job) and dispatch.only_if_absent:
            return "exists"
        if dispatch.only_if_waiting and not job:
            return "active" if run else "absent"
        if job:
            return "updated" if self.update(job, dispatch) else "unchanged"
        if not run:
            self.waiting[id_] = self.job_of(dispatch)
            return "created"
        if run.held:
            self.update(run.held.job, dispatch)
            run.held.dispatches.append(dispatch)
        else:
            run.held = Held(self.job_of(dispatch), [dispatch])
        return "blocked"

    def job_of(self, dispatch: Dispatch) -> Job:
        payload, run_at = dispatch.item.payload, dispatch.run_at
        return Job(payload, run_at, dispatch.accepted, dict(dispatch.set))

    def update(self, job: Job, dispatch: Dispatch) -> bool:
        before = (job.run_at, job.facts())
        if dispatch.update_data:
            job.payload = dispatch.item.payload
        job.run_at = self.place(job.run_at, dispatch.new_run_at(job.run_at))
        job.options = dispatch.options(job.options)
        if dispatch.reset:
            job.reset()
        return dispatch.update_data or (job.run_at, job.facts()) != before

    def cancel(
        self, now: float, ids: Sequence[str], running: bool, call: Number = None
    ) -> list[str] | str:
        self.open(now)
        if before := self.answered(call, ids):
            return before
        replies = [
            "absent" if id_ in ids[:at] else self.cancel_one(id_, running)
            for at, id_ in enumerate(ids)
        ]
        self.keep_call(call, replies)
        self.write()
        return replies

    def cancel_one(self, id_: str, running: bool) -> str:
        if self.waiting.pop(id_, None):
            self.count("cancelled")
            return "cancelled"
        run = self.active.get(id_)
        if not run:
            return "absent"
        held, run.held = run.held, None
        run.cancelled = run.cancelled or running
        return "requested" if running else "cancelled" if held else "active"

    # The end of a run

    def end(self, id_: str, verb: str, when: str = "", error: Any = None) -> str:
        run = self.active.pop(id_)
        if run.cancelled and verb in WAITS_AGAIN:
            verb = "cancel"
        if verb == "broken" and not self.has_room_for_broken(id_):
            verb = "cancel" if run.cancelled else "postpone"
        waits_again = verb in WAITS_AGAIN or verb == "postpone"
        status = self.wait_again(id_, run, verb, when, error) if waits_again else ENDED[verb]
        if status in ENDED.values():
            if status == "failed":
                self.record_failed(id_, run, run.job.error if verb in RAN_OUT else error)
            elif status == "broken":
                self.record_broken(id_, run, error)
            elif status == "finished":
                self.finished.append(id_)
            if run.held:
                self.wait(id_, run.held.job)
        if status not in ("stalled", "expired"):  # already counted, because the job may fail
            self.count(status)
        return status

    def wait_again(self, id_: str, run: Run, verb: str, when: str, error: Any) -> str:
        """Make the job wait again. Returns 'failed', and does nothing, if its limit is reached."""
        job, run_at = run.job, run.job.run_at
        if verb in STALLS:
            self.count("stalled")
            if self.stall(job, int(when or 1), is_death=verb == "death"):
                return "failed"
        elif verb == "expiry":
            self.count("expired")
            job.expiry_count += 1
            message = f"the lease ran out before the job ended (expiry {job.expiry_count})"
            job.error = {"kind": "expiry", "type": "Expired", "message": message}
            if self.is_spent(job, "max_expiries", job.expiry_count):
                return "failed"
        elif verb == "postpone":
            job.error = error
            run_at = self.schedule(f"+{self.limit(job, 'max_backoff')!r}")
        elif verb == "timeout":
            job.timeout_count += 1
            if self.is_spent(job, "max_timeouts", job.timeout_count):
                return "failed"
            run_at = self.schedule_retry(job, job.timeout_count - 1, when, error)
        elif verb == "retry":
            if self.is_spent(job, "max_retries", job.retry_count):
                return "failed"
            job.retry_count += 1
            run_at = self.schedule_retry(job, job.retry_count - 1, when, error)
        job.run_at = run_at
        self.apply_held(run)
        self.wait(id_, job)
        replies = {
            "timeout": "timed_out", "retry": "retried", "postpone": "postponed",
            "expiry": "expired",
        }  # fmt: skip
        return (replies | dict.fromkeys(STALLS, "stalled")).get(verb, "released")

    def stall(self, job: Job, started: int, *, is_death: bool) -> bool:
        """The process of a job died, or its lease expired. Returns whether the job is given up."""
        if is_death:
            half = (started + 1) // 2 - 1
            job.companions = half if job.companions is None else min(half, job.companions)
        if started > 1:
            message = f"the client died while it ran this job and {started - 1} others"
        else:
            job.stall_count += 1
            if job.stall_count > 1:
                job.companions = 0
            message = f"the client died or froze while it ran this job (stall {job.stall_count})"
        job.error = {"kind": "stall", "type": "Stalled", "message": message}
        return started == 1 and self.is_spent(job, "max_stalls", job.stall_count)

    def is_spent(self, job: Job, name: str, count: int) -> bool:
        return UNLIMITED > self.limit(job, name) <= count

    def schedule_retry(self, job: Job, attempts: int, when: str, error: Any) -> float:
        job.error = error
        job.companions = None  # the run ended by itself
        least, most = self.limit(job, "min_backoff"), self.limit(job, "max_backoff")
        return self.schedule(when or f"+{min(most, least * 2**attempts)!r}")

    def apply_held(self, run: Run) -> None:
        if not run.held:
            return
        job, run_at = run.job, run.job.run_at
        for dispatch in run.held.dispatches:
            run_at = dispatch.new_run_at(run_at)
            job.options = dispatch.options(job.options)
            if dispatch.update_data:
                job.payload = dispatch.item.payload
            if dispatch.reset:
                job.reset()
        job.run_at = self.place(job.run_at, run_at)

    def wait(self, id_: str, job: Job) -> None:
        self.waiting[id_] = job
        self.announce(job.run_at, job.companions)

    def limit(self, job: Job, name: str) -> float:
        return (DEFAULTS | self.settings.get("limits", {}) | job.options)[name]

    def record_failed(self, id_: str, run: Run, error: Any) -> None:
        left_out = ("error", "companions")
        facts = {name: fact for name, fact in run.job.facts().items() if name not in left_out}
        if error is not None:
            facts["error"] = error
        facts |= {"failed_at": self.now, "dispatched_at": run.job.dispatched_at}
        if run.job.run_at != run.job.dispatched_at:
            facts["run_at"] = run.job.run_at
        facts["token"] = str(run.token)
        facts["limits"] = DEFAULTS | self.settings.get("limits", {})
        self.record("failed", id_, facts, run.job.payload)
        if self.fail and self.settings.get("fail_handler"):
            self.dispatch_to_fail(f"{id_}:{run.token}", run.job.payload, facts | {"id": id_})

    def dispatch_to_fail(self, id_: str, payload: bytes, origin: dict[str, Any]) -> None:
        assert self.fail
        if not self.fail_opened:
            self.fail.open(self.now)
            self.fail_opened = True
        at = self.fail.tick()
        self.fail.wait(id_, Job(payload, at, at, origin=origin))
        self.fail.count("dispatched")
        self.fail.write()

    # The failed and the broken record

    def record_broken(self, id_: str, run: Run, error: Any) -> None:
        facts: dict[str, Any] = {"broken_at": self.now, "dispatched_at": run.job.dispatched_at}
        facts |= {
            name: run.job.facts()[name] for name in ("options", "origin") if name in run.job.facts()
        }
        self.record(
            "broken", id_, facts if error is None else facts | {"error": error}, run.job.payload
        )

    def has_room_for_broken(self, id_: str) -> bool:
        """Whether the record has room. A broken job never ran, so none is dropped for another."""
        broken = self.records["broken"]
        return id_ in broken or len(broken) < self.settings.get("broken_limit", 1000)

    def record(self, kind: str, id_: str, facts: dict[str, Any], payload: bytes) -> None:
        self.recorded += 1
        self.records[kind].pop(id_, None)
        self.records[kind][id_] = (facts, payload)

    def write_records(self) -> None:
        """Forget the failures of jobs that finished. Give each record of the runs that just ended a
        place in the order of acceptance.
        """
        for id_ in self.finished:
            self.records["failed"].pop(id_, None)
        self.finished = []
        self.keep_newest("failed", self.settings.get("failed_limit", 1000))
        for _ in range(self.recorded):
            self.tick()
        self.recorded = 0
        self.write()

    def keep_newest(self, kind: str, most: int) -> int:
        excess = list(self.records[kind])[: max(0, len(self.records[kind]) - most)]
        for id_ in excess:
            del self.records[kind][id_]
        return len(excess)

    def requeue(
        self, now: float, kind: str, ids: Sequence[str], call: Number = None
    ) -> list[str] | str:
        self.open(now)
        if before := self.answered(call, ids):
            return before
        sizes = {id_: len(payload) for id_, (_, payload) in self.records[kind].items()}
        replies: list[str] = []
        for at, id_ in enumerate(ids):
            enough = sum(sizes.get(before, 0) for before in ids[:at]) >= BYTES
            replies.append("later" if enough else self.requeue_one(kind, id_, id_ in sizes))
        self.keep_call(call, replies)
        self.write()
        self.wake()
        return replies

    def requeue_one(self, kind: str, id_: str, known: bool) -> str:
        if not known:
            return "absent"
        if id_ in self.waiting or id_ in self.active:
            return "exists"
        facts, payload = self.records[kind].pop(id_)
        job = Job(payload, self.tick(), facts["dispatched_at"], facts.get("options", {}))
        job.origin = facts.get("origin")
        self.wait(id_, job)
        self.count("requeued")
        return "requeued"

    def drop(self, now: float, kind: str, ids: Sequence[str]) -> int:
        self.open(now)
        self.write()
        return sum(self.records[kind].pop(id_, None) is not None for id_ in ids)

    def trim(self, now: float, kind: str, keep: int) -> int:
        self.open(now)
        self.write()
        return self.keep_newest(kind, keep)

    def configure(self, now: float, **settings: Any) -> str:
        """Change some of: limits, fail_handler, failed_limit, broken_limit, paused."""
        self.open(now)
        self.settings |= settings
        for kind in self.records:
            if f"{kind}_limit" in settings:
                self.keep_newest(kind, settings[f"{kind}_limit"])
        self.write()
        if settings.get("paused") == 0:
            self.new_due = any(job.run_at <= self.time for job in self.waiting.values())
            self.wake()
        return "ok"
