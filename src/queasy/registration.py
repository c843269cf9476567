"""How an application registers the handlers of a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

from queasy.codec import Codec, CodecName
from queasy.dispatch import DispatchDefaults
from queasy.errors import InvalidInput, InvalidOption
from queasy.handler import (
    Handler,
    HandlerOptions,
    HandlerOptionsDict,
)
from queasy.job import Job
from queasy.registry import Registry
from queasy.requests import QueueRequests
from queasy.store.keys import QueueKeys

__all__ = ["HandledQueue"]


# For type checkers: they check the parameters of a handler, and see the function unchanged.
OnJob = Callable[[], Any] | Callable[[Any], Any] | Callable[[Any, Job], Any]
H = TypeVar("H", bound=OnJob)
F = TypeVar("F", bound=OnJob | Callable[[Any, Job, Any], Any])


class HandledQueue(QueueRequests):
    """A queue with handlers. Registering one starts no worker: `Client.listen` and `work` do."""

    def __init__(
        self,
        keys: QueueKeys,
        codec: CodecName | Codec,
        max_payload: int,
        registry: Registry,
        defaults: DispatchDefaults | None = None,
    ) -> None:
        super().__init__(keys, codec, max_payload, defaults)
        self._registry = registry

    @overload
    def handler(self, function: H, /, **options: Unpack[HandlerOptionsDict]) -> H: ...

    @overload
    def handler(self, function: str, /, **options: Unpack[HandlerOptionsDict]) -> None: ...

    @overload
    def handler(
        self, function: None = None, /, **options: Unpack[HandlerOptionsDict]
    ) -> Callable[[H], H]: ...

    def handler(self, function: Any = None, /, **options: Unpack[HandlerOptionsDict]) -> Any:
        """Register the function that runs the jobs of this queue. Use it as a decorator.

            @emails.handler(timeout=30)
            async def send(data, job): ...

            emails.handler("shop.emails:send", timeout=30)

        A function may be named instead: workers import it when they start. "shop.emails" means
        `handle` in that module and, if it has one, its `handle_failure` as the fail handler.

        The function, async or plain, takes (data, job), (data) or (). When it returns, the job
        is done, unless it returns or raises `Retry` or `Failure`. Any other exception retries
        the job later, or gives it up (`on_exception="fail"`).

        - `max_retries` (10), `max_stalls` (3), `max_timeouts` (3), `max_expiries` ("unlimited"):
          when a job is given up; see `HandlerOptions`
        - `min_backoff` (2), `max_backoff` (300): seconds between retries, doubled each time
        - `timeout` (60): seconds a run may take; "unlimited": no limit
        - `size` (None): what a run costs of a worker's capacity of 100; None: 10 for a plain
          function, 1 to 10 for an async one, as measured
        - `priority` (100): queues with a higher one are served first
        - `on_exception` ("retry"): or "fail"
        - `redact` (None): what to record of the attributes of an exception; None:
          `queasy.redact_secrets`
        """
        return self._decorate(function, options, fail=False)

    @overload
    def fail_handler(self, function: F, /, **options: Unpack[HandlerOptionsDict]) -> F: ...

    @overload
    def fail_handler(self, function: str, /, **options: Unpack[HandlerOptionsDict]) -> None: ...

    @overload
    def fail_handler(
        self, function: None = None, /, **options: Unpack[HandlerOptionsDict]
    ) -> Callable[[F], F]: ...

    def fail_handler(self, function: Any = None, /, **options: Unpack[HandlerOptionsDict]) -> Any:
        """Register the function that runs, at least once, for each job that is given up.

            @emails.fail_handler
            async def report(data, job, error): ...

        The function, which may be named instead, takes (data, job, error), (data, job), (data) or
        (), and is run like a handler: see `handler`. It has the same options, but is retried for a
        week: `max_retries` and `max_timeouts` 180, `min_backoff` 10, `max_backoff` 3600.
        """
        return self._decorate(function, options, fail=True)

    def _decorate(self, function: Any, given: HandlerOptionsDict, *, fail: bool) -> Any:
        self._check_not_fail()
        options = self._options(given, fail=fail)

        def register(function: Any) -> Any:
            self._registry.register(Handler(self.name, fail, options, function, self.codec))
            return None if isinstance(function, str) else function

        return register if function is None else register(function)

    def _options(self, given: Mapping[str, Any], *, fail: bool) -> HandlerOptions:
        try:
            return HandlerOptions.of(given, fail=fail)
        except InvalidInput as problem:
            raise type(problem)(f"queue {self.name!r}, handler: {problem}") from None

    def _check_not_fail(self) -> None:
        if self.keys.fail:
            raise InvalidOption(
                f"expected a queue, got the fail queue of {self.keys.queue!r}: register a "
                "fail_handler on the queue itself"
            )
