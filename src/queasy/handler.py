"""Handlers: the functions that run jobs, and their options.

These are values. The only I/O is the import of a handler that was named by a reference.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from importlib import import_module
from types import UnionType
from typing import Any, Literal, TypedDict, Union, cast, get_args, get_origin

import msgspec

from queasy.attributes import Redact
from queasy.codec import Codec
from queasy.errors import HandlerNotFound, InvalidOption
from queasy.job import Job, JobError
from queasy.options import (
    COUNT_LIMITS,
    OPTION_NAMES,
    UNLIMITED,
    Budget,
    JobOptions,
    RunTimeout,
    Seconds,
    check_budget,
    check_run_timeout,
    check_whole,
    seconds,
)

__all__ = [
    "FAIL_DEFAULTS",
    "Function",
    "Handler",
    "HandlerOptions",
    "HandlerOptionsDict",
    "OnException",
]

OnException = Literal["retry", "fail"]

MAX_SIZE = 100  # the capacity of a worker
MAX_PRIORITY = 1_000_000


class HandlerOptionsDict(TypedDict, total=False):
    """`HandlerOptions` as keywords; a test compares the two."""

    max_retries: Budget
    max_stalls: Budget
    max_timeouts: Budget
    max_expiries: Budget
    min_backoff: Seconds
    max_backoff: Seconds
    timeout: RunTimeout
    size: int | None
    priority: int
    on_exception: OnException
    redact: Redact | None


FAIL_DEFAULTS: HandlerOptionsDict = {
    "max_retries": 180,
    "max_timeouts": 180,
    "min_backoff": 10.0,
    "max_backoff": 3600.0,
}
"""Defaults of a fail handler. It is the last to see a job, so it is retried for a week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """How a handler's jobs are run.

    A job is given up when it fails after `max_retries` retries, or when it has stalled
    `max_stalls` times, timed out `max_timeouts` times, or lost its pull lease `max_expiries`
    times. Between retries it waits `min_backoff` seconds, doubled each time, up to `max_backoff`.
    `timeout` is how many seconds a run may take. "unlimited" means no limit. A job may override
    these options: see `JobOptions`.

    `size` is what a run costs of a worker's capacity of 100. None: a plain function costs 10, an
    async one between 1 and 10, as measured. Queues with a higher `priority` are served first.
    `on_exception` says whether a job is retried or given up when its handler raises. `redact`
    takes the name and the value of each attribute of that exception, and returns the value to
    record; None: `queasy.redact_secrets`.
    """

    max_retries: Budget = 10
    max_stalls: Budget = 3
    max_timeouts: Budget = 3
    max_expiries: Budget = UNLIMITED
    min_backoff: Seconds = 2.0
    max_backoff: Seconds = 300.0
    timeout: RunTimeout = 60.0
    size: int | None = None
    priority: int = 100
    on_exception: OnException = "retry"
    redact: Redact | None = None

    def __post_init__(self) -> None:
        for name in COUNT_LIMITS:
            object.__setattr__(self, name, check_budget(getattr(self, name), name))
        for name in ("min_backoff", "max_backoff"):
            object.__setattr__(self, name, seconds(getattr(self, name), name))
        object.__setattr__(self, "timeout", check_run_timeout(self.timeout))
        if self.size is not None:
            check_whole(self.size, "size", 1, MAX_SIZE)
        check_whole(self.priority, "priority", 0, MAX_PRIORITY)
        if self.on_exception not in get_args(OnException):
            raise InvalidOption(
                f"on_exception: expected 'retry' or 'fail', got {self.on_exception!r}"
            )
        if self.redact is not None and not callable(self.redact):
            raise InvalidOption(
                f"redact: expected a function of a name and a value, got {self.redact!r}"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any], *, fail: bool = False) -> HandlerOptions:
        """Options from keywords; the rest are the defaults of a handler or a fail handler."""
        unknown = [str(name) for name in given if name not in HANDLER_OPTION_NAMES]
        if unknown:
            raise InvalidOption(
                f"options: unknown {', '.join(unknown)}; expected {', '.join(HANDLER_OPTION_NAMES)}"
            )
        return cls(**({**FAIL_DEFAULTS, **given} if fail else given))

    @property
    def limits(self) -> JobOptions:
        """The options that a job may override."""
        return JobOptions(**{name: getattr(self, name) for name in OPTION_NAMES})


HANDLER_OPTION_NAMES = tuple(field.name for field in fields(HandlerOptions))


class Function(msgspec.Struct, frozen=True):
    """A handler's function, ready to be called."""

    call: Callable[[Any, Job, JobError | None], Any]
    """Called with data, job and error; passes on as many of them as the function takes."""
    is_async: bool
    """Whether the result must be awaited."""
    name: str
    """module:qualname"""


@dataclass(frozen=True, slots=True)
class Handler:
    """What runs the jobs of a queue or, with `fail`, the jobs that the queue gave up."""

    queue: str
    """The queue's name; for a fail handler, the queue that gave the jobs up."""
    fail: bool
    options: HandlerOptions
    target: Callable[..., Any] | str
    """A function, or where to import one: "package.module:function" or "package.module"."""
    codec: Codec

    def __post_init__(self) -> None:
        if isinstance(self.target, str):
            check_reference(self.target, "fail_handler" if self.fail else "handler")
        else:
            self.function()  # an unusable function is an error where it is registered

    @property
    def name(self) -> str:
        """The reference as given, or module:qualname of the function."""
        return self.target if isinstance(self.target, str) else name_of(self.target)

    def function(self) -> Function:
        """The function, imported if necessary; raises HandlerNotFound when the import fails."""
        if not isinstance(self.target, str):
            return function_of(self.target, str(self), fail=self.fail)
        module, _, path = self.target.partition(":")
        path = path or ("handle_failure" if self.fail else "handle")
        try:
            target = reduce(getattr, path.split("."), import_module(module))
        except Exception as error:  # a module may raise anything when it is imported
            hint = ""
            if getattr(error, "name", None) == self.target and "." in module:
                hint = "; for a function in a module write 'package.module:function'"
            raise HandlerNotFound(
                f"{self} cannot be imported: {type(error).__name__}: {error}{hint}"
            ) from error
        return function_of(target, str(self), fail=self.fail)

    def companion(self) -> Handler | None:
        """The `handle_failure` of a module that was named without a function, if it has one."""
        if self.fail or not isinstance(self.target, str) or ":" in self.target:
            return None
        if not hasattr(import_module(self.target), "handle_failure"):
            return None
        return replace(self, fail=True, options=HandlerOptions.of({}, fail=True))

    def __str__(self) -> str:
        return f"queue {self.queue!r}, {'fail handler' if self.fail else 'handler'} {self.name}"


def check_reference(value: str, name: str) -> None:
    """A well-formed reference. Whether the function exists is known after the import."""
    is_file = value.partition(":")[0].endswith(".py")
    names = [part for half in value.split(":", 1) for part in half.split(".")]
    if is_file or not all(map(str.isidentifier, names)):
        hint = ", a file: write the name of its module" if is_file else ""
        raise InvalidOption(
            f"{name}: expected a function, 'package.module:function' or 'package.module', "
            f"got {value!r}{hint}"
        )


def function_of(target: object, what: str, *, fail: bool) -> Function:
    """A user's function as a `Function`; raises InvalidOption when it cannot be a handler."""
    if not callable(target) or inspect.isclass(target):
        raise InvalidOption(f"{what}: expected a function, got {target!r}")
    bare = unwrapped(target)
    kinds = (bare, getattr(bare, "__call__", None))  # noqa: B004 - an object's own __call__ may be async
    if any(inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind) for kind in kinds):
        raise InvalidOption(f"{what}: expected a function that returns, got one that yields")
    is_async = any(map(inspect.iscoroutinefunction, kinds))
    return Function(adapt(target, arity(target, what, fail=fail)), is_async, name_of(target))


def arity(target: Callable[..., Any], what: str, *, fail: bool) -> int:
    """How many of data, job and error to pass."""
    expected = "(data), (data, job) or ()"
    if fail:
        expected = f"(data, job, error), {expected}"
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError) as error:  # some functions written in C
        raise InvalidOption(f"{what}: expected a function of {expected}: {error}") from error
    parameters = signature.parameters.values()
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    offered = ("data", "job", "error") if fail else ("data", "job")
    count = sum(parameter.default is parameter.empty for parameter in positional)
    if count > len(offered) or any(
        parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        for parameter in parameters
    ):
        raise InvalidOption(f"{what}: expected a function of {expected}, got {signature}")
    _check_gets_data(target, signature, f"{what}: expected a function of {expected}", fail=fail)
    for parameter, name, kind in zip(
        positional[1:count], offered[1:], (Job, JobError), strict=False
    ):
        if not _receives(parameter, name, kind):
            raise InvalidOption(
                f"{what}: expected a function of {expected}, got {signature}: {parameter.name!r} "
                f"would receive the {kind.__name__}. If it should, name it {name}, _{name} or _, "
                f"or annotate it with {kind.__name__}. If it is a part of the data, dispatch one "
                f"value, such as a dict with the key {parameter.name!r}, and take (data)"
            )
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return len(offered)
    # `lambda data, n=n: ...` must keep its n: a parameter with a default receives the job or the
    # error only if it has that name.
    for parameter, name in zip(positional[count:], offered[count:], strict=False):
        if count and parameter.name != name:
            break
        count += 1
    return count


def _check_gets_data(
    target: Callable[..., Any], signature: inspect.Signature, expected: str, *, fail: bool
) -> None:
    """Raises InvalidOption for a function that would not find the data where it looks for it."""
    parameters = list(signature.parameters.values())
    if parameters and all(one.kind is one.VAR_KEYWORD for one in parameters):
        raise InvalidOption(
            f"{expected}, got {signature}: it would receive nothing, because the data is one value "
            "and not keyword arguments. Take (data), and read what you need from it"
        )
    first = parameters[0] if parameters else None
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return
    for kind in (Job, JobError) if fail else (Job,):
        if _is_annotated_with(kind, first, target):
            raise InvalidOption(
                f"{expected}, got {signature}: {first.name!r} would receive the data, not the "
                f"{kind.__name__}: the first argument is always the data, whatever its name. "
                f"Write (data, job{', error' if kind is JobError else ''})"
            )


def _is_annotated_with(kind: type, parameter: inspect.Parameter, target: Any) -> bool:
    """Whether a parameter is annotated with this class, or with a union that has it.

    An application may have a class `Job` of its own, as its data. So a text is evaluated.
    """
    annotation = parameter.annotation
    if isinstance(annotation, str):  # `from __future__ import annotations`
        if kind.__name__ not in annotation:
            return False
        try:
            evaluated = inspect.signature(target, eval_str=True)
        except (
            Exception
        ):  # any text may be an annotation, and names of `if TYPE_CHECKING` are absent
            return parameter.name in ("job", "_job")
        annotation = evaluated.parameters[parameter.name].annotation
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return kind in get_args(annotation)
    return annotation is kind


def _receives(parameter: inspect.Parameter, name: str, kind: type) -> bool:
    """Whether the author of a function expects the job, or the error, in this parameter."""
    if parameter.name in (name, f"_{name}") or not parameter.name.strip("_"):
        return True
    annotation = parameter.annotation
    if isinstance(annotation, str):  # `from __future__ import annotations`
        return re.search(rf"\b{kind.__name__}\b", annotation) is not None
    return annotation is kind or kind in get_args(annotation)


def adapt(target: Callable[..., Any], count: int) -> Callable[[Any, Job, JobError | None], Any]:
    """The function as one of data, job and error."""
    # Called for every job: a function that takes all three is not wrapped.
    match count:
        case 0:
            return lambda data, job, error: target()
        case 1:
            return lambda data, job, error: target(data)
        case 2:
            return lambda data, job, error: target(data, job)
        case _:
            return target


def unwrapped(target: object) -> object:
    while isinstance(target, partial):
        target = cast("partial[Any]", target).func
    return target


def name_of(target: object) -> str:
    """module:qualname of a function, or of an object's class."""
    named = unwrapped(target)
    if not hasattr(named, "__qualname__"):
        named = type(named)
    return f"{named.__module__}:{named.__qualname__}"  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType]
