"""Handlers: how they are registered, checked, imported and resolved."""

import functools
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from queasy import (
    Client,
    HandlerNotFound,
    HandlerOptions,
    InvalidOption,
    InvalidTime,
    Job,
    JobError,
    JobOptions,
    QueasyError,
    Queue,
)
from queasy.codec import RawCodec
from queasy.handler import FAIL_DEFAULTS, Function, Handler, HandlerOptionsDict
from queasy.registry import Registry

JOB = Job(id="1", queue="emails", state="active", payload=b"")
ERROR = JobError(message="no such address")


@pytest.fixture
def client() -> Client:
    return Client("redis://nowhere.invalid")


@pytest.fixture
def emails(client: Client) -> Queue:
    return client.queue("emails")


@pytest.fixture
def registry(client: Client) -> Registry:
    return client._registry


Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules that exist for one test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name: str, source: str) -> None:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def called(handler: Handler | None) -> Any:
    assert handler is not None
    return handler.function().call("data", JOB, ERROR)


# Options


def test_durations_are_kept_as_seconds() -> None:
    options = HandlerOptions(min_backoff=timedelta(seconds=1), max_backoff=5, timeout=30)
    for value, wanted in ((options.min_backoff, 1.0), (options.max_backoff, 5.0)):
        assert (value, type(value)) == (wanted, float)
    assert (options.timeout, type(options.timeout)) == (30.0, float)


def test_limits_are_the_options_a_job_may_override() -> None:
    assert HandlerOptions(max_retries=1, timeout="unlimited", size=4).limits == JobOptions(
        max_retries=1, max_stalls=3, max_timeouts=3, max_expiries="unlimited", min_backoff=2,
        max_backoff=300, timeout="unlimited",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["max_retries", "max_stalls", "max_timeouts", "max_expiries"])
def test_count_and_timeout_of_a_handler_may_be_unlimited(name: str) -> None:
    options = HandlerOptions.of({name: "unlimited", "timeout": "unlimited"})
    assert (getattr(options, name), options.timeout) == ("unlimited", "unlimited")
    assert (getattr(options.limits, name), options.limits.timeout) == ("unlimited", "unlimited")


def test_defaults_of_a_fail_handler_retry_it_for_several_days() -> None:
    """0.98 of a day is not several: that was the default once."""
    options = HandlerOptions.of({}, fail=True)
    for most in (options.max_retries, options.max_timeouts):
        assert isinstance(most, int)
        pauses = [
            min(float(options.max_backoff), float(options.min_backoff) * 2**n)  # type: ignore[arg-type]
            for n in range(most)
        ]
        days = sum(pauses) / 86_400
        assert 7 < days < 7.5, "the documents say a week"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"max_retries": None}, InvalidOption, "max_retries: expected a whole number from 0"),
        ({"max_retries": -1}, InvalidOption, "max_retries: expected a whole number from 0"),
        ({"max_stalls": 1.5}, InvalidOption, "max_stalls: expected a whole number"),
        ({"max_timeouts": True}, InvalidOption, "max_timeouts: expected a whole number"),
        ({"min_backoff": None}, InvalidTime, "min_backoff: expected seconds"),
        ({"max_backoff": -1}, InvalidTime, "max_backoff: expected 0 to"),
        ({"timeout": 0}, InvalidOption, "timeout: expected more than 0 seconds, or 'unlimited'"),
        ({"timeout": None}, InvalidTime, "for no limit write 'unlimited'"),
        (
            {"max_retries": "none"},
            InvalidOption,
            "from 0 to 2147483648, or 'unlimited', got 'none'",
        ),
        ({"timeout": "60"}, InvalidTime, "timeout: expected seconds"),
        ({"size": 0}, InvalidOption, "size: expected a whole number from 1 to 100, got 0"),
        ({"size": 101}, InvalidOption, "size: expected a whole number from 1 to 100, got 101"),
        ({"priority": -1}, InvalidOption, "priority: expected a whole number from 0 to 1000000"),
        ({"priority": None}, InvalidOption, "priority: expected a whole number"),
        ({"on_exception": "ignore"}, InvalidOption, "expected 'retry' or 'fail', got 'ignore'"),
        ({"on_exception": []}, InvalidOption, "expected 'retry' or 'fail'"),
        ({"max_retrys": 3}, InvalidOption, "unknown max_retrys; expected max_retries, max_stalls"),
    ],
)
def test_bad_option_is_refused_by_every_way_to_register(
    emails: Queue,
    registry: Registry,
    arguments: dict[str, Any],
    error: type[QueasyError],
    says: str,
) -> None:
    for register in (
        lambda: emails.handler(**arguments),
        lambda: emails.fail_handler(print, **arguments),
        lambda: emails.handler("shop", **arguments),
        lambda: emails.fail_handler("shop", **arguments),
    ):
        with pytest.raises(error, match=says):
            register()
    assert registry.handlers() == []


def test_handler_keywords_are_the_fields_of_handler_options() -> None:
    assert list(HandlerOptionsDict.__annotations__) == [f.name for f in fields(HandlerOptions)]


# Decorators


def test_decorator_returns_the_function_unchanged(emails: Queue, registry: Registry) -> None:
    def send(data: str) -> str:
        return data

    async def notify(data: str, job: Job, error: JobError) -> None: ...

    assert emails.handler(send) is send
    assert emails.fail_handler(max_retries=3)(notify) is notify
    assert [(h.queue, h.fail, h.target) for h in registry.handlers()] == [
        ("emails", False, send),
        ("emails", True, notify),
    ]


def test_given_options_override_the_defaults(emails: Queue, registry: Registry) -> None:
    emails.handler(print, size=5)
    emails.fail_handler(print, max_retries=7)
    handler, fail_handler = registry.handlers()
    assert handler.options == HandlerOptions(size=5)
    assert fail_handler.options == HandlerOptions(
        max_retries=7, max_timeouts=180, min_backoff=10, max_backoff=3600
    )
    assert HandlerOptions(**FAIL_DEFAULTS) == HandlerOptions.of({}, fail=True)


def test_a_handler_has_the_codec_of_its_queue(client: Client, registry: Registry) -> None:
    client.queue("frames", codec="raw").handler(print)
    (handler,) = registry.handlers()
    assert isinstance(handler.codec, RawCodec)


def test_two_handlers_for_one_queue_are_refused_by_name(client: Client, emails: Queue) -> None:
    emails.handler(print)
    with pytest.raises(
        InvalidOption,
        match="queue 'emails': expected one handler, got builtins:print and shop:send",
    ):
        client.queue("emails").handler("shop:send")
    emails.fail_handler(print)
    with pytest.raises(InvalidOption, match="expected one fail handler, got builtins:print and"):
        emails.fail_handler(len)


def test_the_same_handler_may_be_registered_again(emails: Queue, registry: Registry) -> None:
    emails.handler(print, size=5)
    emails.handler(print, size=5)
    assert len(registry.handlers()) == 1
    with pytest.raises(InvalidOption, match="expected one handler"):
        emails.handler(print, size=6)


def test_clients_do_not_share_handlers(emails: Queue) -> None:
    emails.handler(print)
    with pytest.raises(InvalidOption, match="no queue has a handler"):
        Client("redis://nowhere.invalid").plan()


@pytest.mark.parametrize("method", ["handler", "fail_handler"])
def test_a_fail_queue_takes_no_handlers(emails: Queue, method: str) -> None:
    with pytest.raises(InvalidOption, match="the fail queue of 'emails': register a"):
        getattr(emails.fail_queue, method)("shop")


# Signatures


class Sender:
    def __call__(self, data: Any) -> Any:
        return ("called", data)

    def send(self, data: Any, job: Job) -> Any:
        return (data, job)

    async def asend(self, data: Any) -> Any:
        return data

    def copy(self, data: Any, to: str) -> None: ...


class AsyncSender:
    async def __call__(self, data: Any, job: Job) -> Any:
        return (data, job)


async def asend(data: Any) -> Any:
    return data


async def stream(data: Any) -> Any:
    yield data


def steps(data: Any) -> Any:
    yield data


class Stream:
    async def __call__(self, data: Any) -> Any:
        yield data


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@decorated
def wrapped(data: Any) -> Any:
    return (data,)


def named_default(data: Any, job: Any = None) -> Any:
    return (data, job)


def annotated(data: Any, run: Job) -> Any:
    return (data, run)


def annotated_as_text(data: Any, run: "Job") -> Any:
    return (data, run)


def annotated_as_perhaps(data: Any, run: Job | None) -> Any:
    return (data, run)


def only_job(job: Job) -> None: ...


def only_job_as_text(job: "Job | None") -> None: ...


def only_job_perhaps(job: Job | None, _: Any) -> None: ...


def only_job_unresolved(job: "Job", nothing: "Absent" = None) -> None: ...  # type: ignore[name-defined] # noqa: F821


def data_of_an_application() -> list[Callable[..., Any]]:
    """Handlers whose data is a class that is also called Job."""

    class Job: ...

    def by_class(data: Job) -> Any:
        return (data,)

    def by_text(data: "Job") -> Any:  # here not even a name that can be resolved
        return (data,)

    by_text.__annotations__["return"] = "Absent"

    def many(data: "list[Job]") -> Any:
        return (data,)

    return [by_class, by_text, many]


ALIKE: list[tuple[Callable[..., Any], Any]] = [
    (lambda: (), ()),
    (lambda a: (a,), ("data",)),
    (lambda a, job: (a, job), ("data", JOB)),
    (lambda a, _job: (a, _job), ("data", JOB)),
    (lambda a, _: (a, _), ("data", JOB)),
    (lambda _, __: (_, __), ("data", JOB)),
    (lambda a=None: (a,), ("data",)),
    (lambda a, /, job: (a, job), ("data", JOB)),
    (annotated, ("data", JOB)),
    (annotated_as_text, ("data", JOB)),
    (annotated_as_perhaps, ("data", JOB)),
    (lambda *a: a[:2], ("data", JOB)),
    (lambda a, n=7: (a, n), ("data", 7)),
    (lambda a, *, n=7: (a, n), ("data", 7)),
    (lambda a, n=7, job=None: (a, n, job), ("data", 7, None)),
    (lambda a, **kw: (a, kw), ("data", {})),
    (named_default, ("data", JOB)),
    (Sender(), ("called", "data")),
    (Sender().send, ("data", JOB)),
    (functools.partial(lambda n, a: (n, a), 7), (7, "data")),
    (functools.partial(lambda a, n: (a, n), n=7), ("data", 7)),
    (wrapped, ("data",)),
    *((function, ("data",)) for function in data_of_an_application()),
]


@pytest.mark.parametrize(("function", "wanted"), ALIKE)
def test_handler_gets_the_arguments_it_declares(
    emails: Queue, registry: Registry, function: Callable[..., Any], wanted: Any
) -> None:
    emails.handler(function)
    emails.fail_handler(function)
    assert called(registry.get("emails", False)) == wanted
    assert called(registry.get("emails", True)) == wanted


def test_a_fail_handler_may_take_the_error(emails: Queue, registry: Registry) -> None:
    def notify(data: Any, job: Job, error: JobError) -> Any:
        return (data, job, error)

    emails.fail_handler(notify)
    handler = registry.get("emails", True)
    assert called(handler) == ("data", JOB, ERROR)
    assert handler is not None
    assert handler.function().call is notify  # without a wrapper


def test_a_fail_handler_may_name_the_error_with_a_default(
    emails: Queue, registry: Registry
) -> None:
    emails.fail_handler(lambda data, job=None, error=None: (data, job, error))
    assert called(registry.get("emails", True)) == ("data", JOB, ERROR)


def test_handler_with_star_args_gets_every_argument(emails: Queue, registry: Registry) -> None:
    emails.handler(lambda *args: args)
    emails.fail_handler(lambda *args: args)
    assert called(registry.get("emails", False)) == ("data", JOB)
    assert called(registry.get("emails", True)) == ("data", JOB, ERROR)


def of(function: Any) -> Function:
    return Handler("emails", False, HandlerOptions(), function, RawCodec()).function()


@pytest.mark.parametrize(
    "function",
    [
        asend,
        Sender().asend,
        AsyncSender(),
        functools.partial(asend),
        functools.partial(AsyncSender()),
    ],
)
async def test_async_is_seen_through_partials_methods_and_objects(function: Any) -> None:
    found = of(function)
    assert found.is_async
    result = found.call("data", JOB, None)
    assert inspect.iscoroutine(result)  # of the function itself, not of a wrapper
    assert await result in ("data", ("data", JOB))


def test_a_plain_function_is_not_async() -> None:
    assert not any(of(function).is_async for function, _ in ALIKE)


def test_a_function_is_named_as_it_would_be_imported() -> None:
    here = __name__
    assert of(asend).name == f"{here}:asend"
    assert of(functools.partial(asend)).name == f"{here}:asend"
    assert of(Sender()).name == f"{here}:Sender"
    assert of(Sender().send).name == f"{here}:Sender.send"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (7, "expected a function, got 7"),
        (Sender, "expected a function, got <class"),
        (lambda a, b, c, d: None, r"\(data, job\) or \(\), got \(a, b, c, d\)"),
        (
            lambda user_id, template: None,
            "'template' would receive the Job.*with the key 'template'",
        ),
        (lambda a, /, b: None, "'b' would receive the Job.*name it job, _job or _, or annotate"),
        (functools.partial(lambda smtp, a, b: None, 7), "'b' would receive the Job"),
        (Sender().copy, "'to' would receive the Job"),
        (lambda a, *, smtp: None, r"\(data, job\) or \(\), got \(a, \*, smtp\)"),
        (lambda **fields: None, r"got \(\*\*fields\): it would receive nothing.* Take \(data\)"),
        (functools.partial(lambda a, **fields: None, 1), "it would receive nothing"),
        (only_job, r"'job' would receive the data, not the Job.* Write \(data, job\)$"),
        (only_job_as_text, "'job' would receive the data"),
        (only_job_perhaps, "'job' would receive the data"),
        (only_job_unresolved, "'job' would receive the data"),
        (steps, "expected a function that returns, got one that yields"),
        (stream, "expected a function that returns, got one that yields"),
        (functools.partial(steps), "got one that yields"),
        (Stream(), "got one that yields"),
    ],
)
def test_unsuitable_handler_is_refused_with_the_reason(
    emails: Queue, registry: Registry, function: Any, says: str
) -> None:
    with pytest.raises(InvalidOption, match=f"queue 'emails'.*{says}"):
        emails.handler(function)
    with pytest.raises(InvalidOption, match=f"queue 'emails'.*{says}"):
        emails.fail_handler(function)
    assert registry.handlers() == []


def test_third_argument_of_a_fail_handler_is_the_error(emails: Queue, registry: Registry) -> None:
    with pytest.raises(InvalidOption, match=r"'reason' would receive the JobError.*name it error"):
        emails.fail_handler(lambda data, job, reason: None)

    def notify(data: Any, job: Job, reason: JobError) -> Any:
        return reason

    emails.fail_handler(notify)
    assert called(registry.get("emails", True)) is ERROR


def test_first_argument_of_a_fail_handler_is_not_the_error(emails: Queue) -> None:
    def notify(error: JobError) -> None: ...

    with pytest.raises(InvalidOption, match=r"the JobError.* Write \(data, job, error\)$"):
        emails.fail_handler(notify)


def test_only_a_fail_handler_gets_the_error(emails: Queue) -> None:
    def notify(data: Any, job: Job, error: JobError) -> None: ...

    with pytest.raises(
        InvalidOption, match=r"handler .*:.*notify: expected a function of \(data\), \(data, job\)"
    ):
        emails.handler(notify)  # type: ignore[type-var]


def test_a_function_without_a_signature_is_refused(emails: Queue) -> None:
    class Opaque:
        __signature__ = "unreadable"

        def __call__(self) -> None: ...

    with pytest.raises(InvalidOption, match=r"fail handler .*Opaque: expected .*error\), \(data\)"):
        emails.fail_handler(Opaque())


# References


def test_a_reference_is_imported_when_it_is_needed(
    emails: Queue, registry: Registry, write: Write
) -> None:
    emails.handler("shop.emails:send", timeout=5)
    emails.fail_handler("shop.emails:Mail.notify")
    handler, fail_handler = registry.handlers()
    assert "shop.emails" not in sys.modules
    assert handler.options == HandlerOptions(timeout=5)
    assert fail_handler.options == HandlerOptions.of({}, fail=True)

    write(
        "shop.emails",
        "def send(data): return data\n"
        "class Mail:\n"
        "    @staticmethod\n"
        "    async def notify(data, job, error): ...\n",
    )
    assert called(handler) == "data"
    assert handler.function().name == "shop.emails:send"
    assert fail_handler.function().is_async


def test_module_reference_means_its_handle_function(
    emails: Queue, registry: Registry, write: Write
) -> None:
    write("shop", "def handle(data): return 'handled'\ndef handle_failure(data): return 'failed'\n")
    emails.handler("shop")
    emails.fail_handler("shop", size=9)
    handler, fail_handler = registry.handlers()
    assert (called(handler), called(fail_handler)) == ("handled", "failed")
    assert fail_handler.options == HandlerOptions.of({"size": 9}, fail=True)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("", "got ''"),
        ("shop:", "got 'shop:'"),
        (":send", "got ':send'"),
        ("shop:send:now", "got"),
        (".shop", "got '.shop'"),
        ("shop/emails.py", "got 'shop/emails.py', a file: write the name of its module"),
        ("emails.py", "got 'emails.py', a file: write the name of its module"),
        ("emails.py:send", "got 'emails.py:send', a file"),
        ("shop..emails:send", "got"),
    ],
)
def test_invalid_reference_is_refused(
    emails: Queue, registry: Registry, reference: Any, says: str
) -> None:
    wanted = f"expected a function, 'package.module:function' or 'package.module', {says}"
    with pytest.raises(InvalidOption, match=f"^handler: {wanted}"):
        emails.handler(reference)
    with pytest.raises(InvalidOption, match=f"^fail_handler: {wanted}"):
        emails.fail_handler(reference)
    assert registry.handlers() == []


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nowhere", "handler nowhere cannot be imported: ModuleNotFoundError: No module named"),
        ("nowhere.at_all:send", "handler nowhere.at_all:send .*No module named 'nowhere'$"),
        ("shop.send", "; for a function in a module write 'package.module:function'$"),
        ("shop", "module 'shop' has no attribute 'handle'"),
        ("shop:Sender.send", "AttributeError: .*'Sender'"),
        ("needy:send", "ImportError: the library is 32 bits$"),
        ("broken:send", "SyntaxError: "),
        ("fails:send", "KeyError: 'PASSWORD'$"),
    ],
)
def test_handler_that_cannot_be_imported_raises_with_the_reason(
    emails: Queue, registry: Registry, write: Write, reference: str, says: str
) -> None:
    write("shop", "def send(data): ...\n")
    write("needy", "raise ImportError('the library is 32 bits')\n")
    write("broken", "def send(data:\n")
    write("fails", "{}['PASSWORD']\n")
    emails.handler(reference)
    with pytest.raises(HandlerNotFound, match=f"^queue 'emails', .*{says}") as caught:
        registry.resolved()
    assert caught.value.__cause__ is not None


def test_imported_handler_must_be_a_function(
    emails: Queue, registry: Registry, write: Write
) -> None:
    write("shop", "send = 7\ndef notify(a, b, c, d): ...\n")
    emails.handler("shop:send")
    emails.fail_handler("shop:notify")
    handler, fail_handler = registry.handlers()
    with pytest.raises(InvalidOption, match="handler shop:send: expected a function, got 7"):
        handler.function()
    with pytest.raises(InvalidOption, match=r"fail handler shop:notify: .* got \(a, b, c, d\)"):
        fail_handler.function()


# The registry


def test_queues_are_listed_once_and_in_order(client: Client, registry: Registry) -> None:
    client.queue("b").fail_handler(print)
    client.queue("a").handler(print)
    client.queue("b").handler(print)
    assert registry.names() == ["b", "a"]
    assert [(h.queue, h.fail) for h in registry.handlers()] == [
        ("b", True),
        ("a", False),
        ("b", False),
    ]
    assert registry.get("a", True) is None


def found(registry: Registry, *names: str) -> list[tuple[str, bool, str]]:
    pairs = registry.resolved(names or None)
    return [(handler.queue, handler.fail, function.name) for handler, function in pairs]


def test_all_handlers_or_those_named_are_resolved(client: Client, registry: Registry) -> None:
    client.queue("a").handler(print)
    client.queue("b").handler(print)
    client.queue("b").fail_handler(print)
    a, b = ("a", False, "builtins:print"), ("b", False, "builtins:print")
    assert found(registry) == [a, b, ("b", True, "builtins:print")]
    assert found(registry, "a") == [a]
    assert found(registry, "b", "a") == found(registry)


def test_module_reference_brings_its_fail_handler(
    emails: Queue, registry: Registry, write: Write
) -> None:
    write("shop", "def handle(data): ...\ndef handle_failure(data, job, error): ...\n")
    emails.handler("shop", size=3)
    (handler, function), (fail_handler, fail_function) = registry.resolved()
    assert (handler.fail, function.name) == (False, "shop:handle")
    assert (fail_handler.fail, fail_function.name) == (True, "shop:handle_failure")
    assert fail_handler.options == HandlerOptions.of({}, fail=True)
    assert registry.handlers() == [handler]  # resolving does not register it


def test_named_fail_handler_overrides_that_of_the_module(
    client: Client, registry: Registry, write: Write
) -> None:
    write("shop", "def handle(data): ...\ndef handle_failure(data): ...\ndef notify(data): ...\n")
    client.queue("a").handler("shop")
    client.queue("a").fail_handler("shop:notify")
    client.queue("b").handler("shop")
    client.queue("b").fail_handler(print)
    assert [name for _, fail, name in found(registry) if fail] == ["shop:notify", "builtins:print"]


def test_missing_fail_handler_of_a_module_matters_only_if_requested(
    client: Client, registry: Registry, write: Write
) -> None:
    write("shop", "def handle(data): ...\n")
    client.queue("a").handler("shop")
    assert found(registry) == [("a", False, "shop:handle")]
    client.queue("b").fail_handler("shop", size=1)
    with pytest.raises(HandlerNotFound, match=r"queue 'b', fail handler shop .*'handle_failure'"):
        registry.resolved()


def test_function_reference_brings_no_fail_handler(
    emails: Queue, registry: Registry, write: Write
) -> None:
    write("shop", "def send(data): ...\ndef handle_failure(data): ...\n")
    emails.handler("shop:send")
    assert found(registry) == [("emails", False, "shop:send")]


def test_handler_registered_during_an_import_is_resolved(
    client: Client, registry: Registry, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.the_client", client, raising=False)
    write("shop", "def handle(data): ...\nthe_client.queue('b').handler(print)\n")
    client.queue("a").handler("shop")
    assert found(registry) == [("a", False, "shop:handle"), ("b", False, "builtins:print")]


def test_resolving_without_handlers_explains_how_to_register(registry: Registry) -> None:
    for names in (None, ["emails"]):
        with pytest.raises(
            InvalidOption, match=r"no queue has a handler: was the module imported .*@queue.handler"
        ):
            registry.resolved(names)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (
            ["emails", "emials"],
            "queues: no handler for emials; expected emails, reports. Was the module imp",
        ),
        ([7], "queues: no handler for 7; expected emails, reports"),
        ([], r"queues: expected one name or more, in a list, got \[\]$"),
        ("emails", "queues: expected one name or more, in a list, got 'emails'$"),
    ],
)
def test_unknown_queue_names_are_refused(
    client: Client, registry: Registry, names: Any, says: str
) -> None:
    client.queue("emails").handler(print)
    client.queue("reports").fail_handler(print)
    with pytest.raises(InvalidOption, match=says):
        registry.resolved(names)


# Types

TYPED = """
# pyright: strict
from functools import partial
from typing import assert_type
from queasy import Client, Job, JobError

emails = Client("redis://nowhere").queue("emails")

@emails.handler
async def send(data: dict[str, str], job: Job) -> int:
    return len(data) + job.token

@emails.handler(timeout="unlimited", size=5, on_exception="fail")
def count(data: str, start: int = 0) -> int:
    return start + len(data)

@emails.fail_handler(max_retries=3)
def notify(data: str, job: Job, error: JobError) -> bool:
    return True

async def calls(job: Job) -> None:
    assert_type(await send({}, job), int)
    assert_type(count("x", start=2), int)
    assert_type(notify("x", job, JobError()), bool)
    assert_type(emails.handler(partial(count, start=3)), partial[int])
    emails.handler("shop", size=2)
    emails.fail_handler("shop:notify", size=3)
    emails.handler(notify)  # wrong
    emails.handler(count, sise=3)  # wrong
    emails.handler(on_exception="maybe")  # wrong
    emails.handler(7)  # wrong
"""


def test_type_checker_knows_decorated_functions_and_rejects_wrong_ones(tmp_path: Path) -> None:
    path = tmp_path / "typed.py"
    path.write_text(TYPED)
    checker = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
    result = subprocess.run([*checker, "--outputjson", path], capture_output=True, check=False)
    problems = json.loads(result.stdout)["generalDiagnostics"]
    lines = TYPED.splitlines()
    wrong = {number for number, line in enumerate(lines) if line.endswith("# wrong")}
    assert {p["range"]["start"]["line"] for p in problems} == wrong, problems
