"""From a job to its outcome: decode, call, and see what came of it."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import msgspec

from queasy.errors import InvalidInput, UndecodablePayload
from queasy.handler import OnException
from queasy.job import Job, JobError
from queasy.options import epoch, seconds
from queasy.outcomes import Broken, Fail, Failure, Finish, Outcome, Retry, RetryLater
from queasy.worker.events import Flood, log, tell
from queasy.worker.plan import Service

__all__ = ["execute", "execute_plain"]

FINISH = Finish()
# A logger of its own: messages of errors may quote the data, and somebody may mind.
handler_log = logging.getLogger("queasy.handler")
_told = Flood(handler_log, "raised by handlers")


async def execute(service: Service, job: Job) -> Outcome:
    """Runs an async handler. Only a cancellation gets out of here."""
    options = service.handler.options
    try:
        result = await service.function.call(*_arguments(service, job))
    except _Undecodable as problem:
        return Broken(problem.error)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        _tell(service, job, error)
        return outcome_of_error(error, options.on_exception)
    return FINISH if result is None else _returned(service, job, result)


def execute_plain(service: Service, job: Job) -> Outcome:
    """Runs a plain function in the calling thread. Only an interruption gets out of here."""
    options = service.handler.options
    try:
        result = service.function.call(*_arguments(service, job))
    except _Undecodable as problem:
        return Broken(problem.error)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        _tell(service, job, error)
        return outcome_of_error(error, options.on_exception)
    return FINISH if result is None else _returned(service, job, result)


def _tell(service: Service, job: Job, error: BaseException) -> None:
    """With a traceback, as its author would want to see it; of what was meant, what it says."""
    if not _told.lets():
        return
    fields = {"queue": service.name, "job": job.id, "retries": job.retry_count}
    if not isinstance(error, (Retry, Failure)):
        tell(handler_log, logging.WARNING, "handler raised", fields, error)
    elif message := str(error):
        tell(handler_log, logging.INFO, "handler said", {**fields, "message": message})


def _returned(service: Service, job: Job, result: object) -> Outcome:
    """What came of a run that returned something."""
    if inspect.iscoroutine(result):
        result.close()
        hint = "forgotten `await`?" if service.function.is_async else "make it `async def`"
        error = TypeError(f"{service.function.name} returned a coroutine nobody awaits: {hint}")
        _tell(service, job, error)
        return outcome_of_error(error, service.handler.options.on_exception)
    if result is Retry or result is Failure:  # as with `raise`, parentheses may be left out
        result = result()
    if isinstance(result, (Retry, Failure)):
        _tell(service, job, result)
    return outcome_of(result)


class _Undecodable(Exception):
    def __init__(self, error: JobError) -> None:
        self.error = error


def _arguments(service: Service, job: Job) -> tuple[Any, Job, JobError | None]:
    if not job.readable:
        raise _Undecodable(job.error or JobError(kind="broken"))
    try:
        data = job.data
    except UndecodablePayload as problem:
        broken = JobError.of(problem.__cause__ or problem, "broken")
        raise _Undecodable(broken or JobError(kind="broken")) from None
    if not service.handler.fail:
        return data, job, None
    if job.origin is None:  # put into the fail queue by hand
        return data, job, job.error
    # The job that was given up, as whoever dispatched it knows it.
    return data, msgspec.structs.replace(job.origin, flag=job.flag), job.origin.error


def outcome_of(result: object) -> Outcome:
    """Of what a handler returned."""
    match result:
        case Retry():
            return RetryLater(JobError.of(result), *_when(result))
        case Failure():
            return Fail(JobError.of(result, "permanent"))
        case _:
            return FINISH


def _when(retry: Retry) -> tuple[float | None, float | None]:
    """Checked when it was made; but its author may have changed it since."""
    try:
        at = None if retry.at is None else epoch(retry.at, "at")
        after = None if retry.after is None else seconds(retry.after, "after")
    except InvalidInput as problem:
        log.warning("a Retry has no time that can be used: %s", problem)
        return None, None
    return at, after


def outcome_of_error(error: BaseException, on_exception: OnException) -> Outcome:
    """Of what a handler raised."""
    match error:
        case Retry() | Failure():
            return outcome_of(error)
        case _ if (at := getattr(error, "retry_at", None)) is not None:
            return RetryLater(JobError.of(error), _time(at, error))
        case _ if on_exception == "fail":
            return Fail(JobError.of(error, "permanent"))
        case _:
            return RetryLater(JobError.of(error))


def _time(at: object, error: BaseException) -> float | None:
    try:
        return epoch(at, "retry_at")
    except InvalidInput as problem:
        log.warning("%s has a retry_at that is no time: %s", type(error).__qualname__, problem)
        return None
