"""From a job to its outcome: decode the payload, call the handler, read the result."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from queasy.attributes import Redact, attribute_of
from queasy.current import RUNNING, job_for_handler
from queasy.errors import InvalidInput
from queasy.handler import HandlerOptions
from queasy.job import Job, JobError
from queasy.options import epoch, seconds
from queasy.outcomes import Broken, Fail, Failure, Finish, Outcome, Retry, RetryLater
from queasy.worker.events import Flood, log, log_event
from queasy.worker.plan import Service

__all__ = ["execute", "execute_plain", "outcome_of_error"]

FINISH = Finish()
# A separate logger, which users can silence: error messages may quote a job's data.
handler_log = logging.getLogger("queasy.handler")
_flood = Flood(handler_log, "raised by handlers")


async def execute(service: Service, job: Job) -> Outcome:
    """Run an async handler. Only a cancellation is raised.

    It leaves `RUNNING` set, so that the task does not run another handler.
    """
    outside = RUNNING.set((service.commands.keys, job))
    try:
        given = job if job.origin is None else job_for_handler(job)
        result = await service.function.call(_data(job), given, given.error)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        RUNNING.reset(outside)
        return _outcome_of_exception(service, job, error)
    RUNNING.reset(outside)
    return FINISH if result is None else _outcome_of_result(service, job, result)


def execute_plain(service: Service, job: Job) -> Outcome:
    """Run a plain function in the calling thread. Only an interruption is raised."""
    outside = RUNNING.set((service.commands.keys, job))
    try:
        given = job if job.origin is None else job_for_handler(job)
        result = service.function.call(_data(job), given, given.error)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        RUNNING.reset(outside)
        return _outcome_of_exception(service, job, error)
    RUNNING.reset(outside)
    return FINISH if result is None else _outcome_of_result(service, job, result)


class _Undecodable(Exception):
    def __init__(self, error: JobError) -> None:
        self.error = error


def _data(job: Job) -> Any:
    """Data for the handler. Raises _Undecodable for a broken payload.

    `job.data` would take longer, and every job that runs comes here.
    """
    if not job.readable:
        raise _Undecodable(job.error or JobError(kind="broken"))
    if job.codec is None:
        return job.payload
    try:
        return job.codec.decode(job.payload)
    except Exception as problem:
        broken = JobError.of(problem, "broken")
        raise _Undecodable(broken or JobError(kind="broken")) from None


def _outcome_of_exception(service: Service, job: Job, error: BaseException) -> Outcome:
    if isinstance(error, _Undecodable):
        return Broken(error.error)
    _log_error(service, job, error)
    return outcome_of_error(error, service.handler.options)


def _outcome_of_result(service: Service, job: Job, result: object) -> Outcome:
    """The outcome of a handler that returned something."""
    if inspect.iscoroutine(result):
        result.close()
        hint = "missing `await`?" if service.function.is_async else "make it `async def`"
        error = TypeError(
            f"{service.function.name} returned a coroutine that is never awaited: {hint}"
        )
        return _outcome_of_exception(service, job, error)
    if result is Retry or result is Failure:  # as with `raise`, parentheses may be left out
        result = result()
    if isinstance(result, (Retry, Failure)):
        _log_error(service, job, result)
    return outcome_of(result, service.handler.options.redact)


def _log_error(service: Service, job: Job, error: BaseException) -> None:
    """Log an exception with its traceback, and a Retry or Failure with its message only."""
    if not _flood.admit():
        return
    fields = {"queue": service.name, "job": job.id, "retries": job.retry_count}
    if not isinstance(error, (Retry, Failure)):
        log_event(handler_log, logging.WARNING, "handler_raised", fields, error)
    elif message := str(error):
        log_event(handler_log, logging.INFO, "handler_message", {**fields, "message": message})


def outcome_of(result: object, redact: Redact | None = None) -> Outcome:
    """The outcome that a returned value stands for."""
    match result:
        case Retry():
            return RetryLater(JobError.of(result, redact=redact), *_retry_time(result))
        case Failure():
            return Fail(JobError.of(result, "permanent", redact))
        case _:
            return FINISH


def outcome_of_error(error: BaseException, options: HandlerOptions) -> Outcome:
    """The outcome that a raised exception stands for."""
    match error:
        case Retry() | Failure():
            return outcome_of(error, options.redact)
        case _ if (at := attribute_of(error, "retry_at")) is not None:
            return RetryLater(JobError.of(error, redact=options.redact), _retry_at(at, error))
        case _ if options.on_exception == "fail":
            return Fail(JobError.of(error, "permanent", options.redact))
        case _:
            return RetryLater(JobError.of(error, redact=options.redact))


def _retry_time(retry: Retry) -> tuple[float | None, float | None]:
    """A Retry's time, checked again: the handler may have changed it since it was made."""
    try:
        at = None if retry.at is None else epoch(retry.at, "at")
        after = None if retry.after is None else seconds(retry.after, "after")
    except InvalidInput as problem:
        log.warning(
            "a handler's Retry has an invalid time and uses the backoff instead: %s", problem
        )
        return None, None
    return at, after


def _retry_at(at: object, error: BaseException) -> float | None:
    try:
        return epoch(at, "retry_at")
    except InvalidInput as problem:
        name = type(error).__qualname__
        log.warning("%s has an invalid retry_at and uses the backoff instead: %s", name, problem)
        return None
