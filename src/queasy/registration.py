"""How an application registers the handlers of a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

from queasy.codec import Codec, CodecName
from queasy.errors import InvalidInput, InvalidOption
from queasy.handler import (
    Handler,
    HandlerOptions,
    HandlerOptionsDict,
    Registry,
    check_reference,
)
from queasy.job import Job
from queasy.options import check_name
from queasy.requests import QueueRequests
from queasy.store.keys import QueueKeys

__all__ = ["HandledQueue", "keys_of"]


def keys_of(prefix: str, name: str) -> QueueKeys:
    return QueueKeys(prefix, check_name(name))


# For type checkers: they check the parameters of a handler, and see the function unchanged.
OnJob = Callable[[], Any] | Callable[[Any], Any] | Callable[[Any, Job], Any]
H = TypeVar("H", bound=OnJob)
F = TypeVar("F", bound=OnJob | Callable[[Any, Job, Any], Any])


class HandledQueue(QueueRequests):
    """A queue with handlers. Registering one runs nothing: workers run jobs."""

    def __init__(
        self, keys: QueueKeys, codec: CodecName | Codec, max_payload: int, registry: Registry
    ) -> None:
        super().__init__(keys, codec, max_payload)
        self._registry = registry

    @overload
    def handler(self, function: H, /, **options: Unpack[HandlerOptionsDict]) -> H: ...

    @overload
    def handler(
        self, function: None = None, /, **options: Unpack[HandlerOptionsDict]
    ) -> Callable[[H], H]: ...

    def handler(self, function: Any = None, /, **options: Unpack[HandlerOptionsDict]) -> Any:
        """Register the function that runs the jobs of this queue. Use it as a decorator.

            @emails.handler(timeout=30)
            async def send(data, job): ...

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
        """
        return self._decorate(function, options, fail=False)

    @overload
    def fail_handler(self, function: F, /, **options: Unpack[HandlerOptionsDict]) -> F: ...

    @overload
    def fail_handler(
        self, function: None = None, /, **options: Unpack[HandlerOptionsDict]
    ) -> Callable[[F], F]: ...

    def fail_handler(self, function: Any = None, /, **options: Unpack[HandlerOptionsDict]) -> Any:
        """Register the function that runs, at least once, for each job that is given up.

            @emails.fail_handler
            async def report(data, job, error): ...

        It takes (data, job, error), (data, job), (data) or (), and is run like a
        handler: see `handler`. It has the same options, but is retried for a week:
        `max_retries` and `max_timeouts` 180, `min_backoff` 10, `max_backoff` 3600.
        """
        return self._decorate(function, options, fail=True)

    def listen(
        self,
        handler: str,
        *,
        fail_handler: str | None = None,
        fail_options: Mapping[str, Any] | None = None,
        **options: Unpack[HandlerOptionsDict],
    ) -> None:
        """Register a handler by its name: workers import it when they start.

            emails.listen("shop.emails:send", timeout=30)
            emails.listen("shop.emails")

        A reference without a function means `handle` in that module, and its `handle_failure`,
        if it has one, as the fail handler; `fail_handler` names another. Options are those of
        `handler`, `fail_options` those of the fail handler.
        """
        self._check_not_fail()
        check_reference(handler, "handler")
        handlers = [
            Handler(self.name, False, self._options(options, fail=False), handler, self.codec)
        ]
        if fail_options is not None and not isinstance(fail_options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                f"fail_options: expected a mapping, got {type(fail_options).__name__}"
            )
        if fail_handler is None and fail_options is not None:
            if ":" in handler:
                raise InvalidOption("fail_options: expected a fail_handler as well")
            fail_handler = handler
        if fail_handler is not None:
            check_reference(fail_handler, "fail_handler")
            given = HandlerOptions.of(fail_options or {}, fail=True)
            handlers.append(Handler(self.name, True, given, fail_handler, self.codec))
        self._registry.register(*handlers)

    def _decorate(self, function: Any, given: HandlerOptionsDict, *, fail: bool) -> Any:
        self._check_not_fail()
        options = self._options(given, fail=fail)

        def register(function: Any) -> Any:
            if isinstance(function, str):
                raise InvalidOption(
                    f"queue {self.name!r}: expected a function, got {function!r}; to register a "
                    "function by its name use listen"
                )
            self._registry.register(Handler(self.name, fail, options, function, self.codec))
            return function

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
