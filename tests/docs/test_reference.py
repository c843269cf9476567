"""The reference lists what the code has: options, errors, commands, keys and functions."""

import argparse
import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import queasy
from queasy import (
    Client,
    Dispatch,
    DispatchDefaults,
    HandlerOptions,
    JobOptions,
    Queue,
    SyncClient,
    errors,
)
from queasy.cli import _parser
from queasy.handler import FAIL_DEFAULTS
from queasy.store.keys import NAMES
from queasy.store.library import PREFIX, source
from tests.docs.pages import DOCS, section

OPTIONS = DOCS / "reference" / "options.md"
ERRORS = DOCS / "reference" / "errors.md"
CLI = DOCS / "reference" / "cli.md"
PROTOCOL = DOCS / "reference" / "protocol.md"


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`\"?([\w-]+)\"?", text))


def parameters(function: Callable[..., Any]) -> set[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = inspect.signature(function).parameters.values()
    return {one.name for one in found if one.kind not in kinds} - {"self"}


# Options


@pytest.mark.parametrize(
    ("title", "function"),
    [
        ("Client", Client),
        ("Client", SyncClient),
        ("Client", Client.queue),
        ("Handlers", HandlerOptions),
        ("Dispatch", Queue.dispatch),
        ("Dispatch", Dispatch),
        ("Dispatch", DispatchDefaults),
        ("Dispatch", JobOptions),
        ("Queue", Queue.configure),
        ("Workers", Client.worker),
        ("Workers", Client.listen),
    ],
)
def test_options_list_every_argument(title: str, function: Callable[..., Any]) -> None:
    listed = names_in(section(OPTIONS, title)) | {"data", "name"}
    assert parameters(function) <= listed, f"{function.__qualname__} in {title}"


def test_lease_is_described_with_its_defaults() -> None:
    lease = inspect.signature(Queue.lease)
    shown = ", ".join(
        f"{p.name}={p.default}" for p in lease.parameters.values() if p.name != "self"
    )
    assert f"`queue.lease({shown})`" in section(OPTIONS, "Queue")


def test_handler_options_are_listed_with_their_defaults() -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \|", section(OPTIONS, "Handlers"), re.M)
    listed = {
        name: (default, fail)
        for names, defaults, fails in rows
        for name, default, fail in zip(
            re.findall(r"`(\w+)`", names), defaults.split(", "), fails.split(", "), strict=True
        )
    }
    for field in dataclasses.fields(HandlerOptions):
        default, fail = field.default, dict(FAIL_DEFAULTS).get(field.name, field.default)
        assert listed[field.name] == (shown(field.name, default), shown(field.name, fail))


def shown(name: str, value: object) -> str:
    if value is None:
        return {"size": "measured", "redact": "secrets"}[name]
    return f'`"{value}"`' if isinstance(value, str) else f"{value:g}"


# Errors


def test_every_error_is_in_the_tree_and_in_the_table() -> None:
    page = ERRORS.read_text()
    tree = page.partition("```\n")[2].partition("```")[0]
    for name in errors.__all__:
        assert re.search(rf"\b{name}$", tree, re.M), f"{name} is not in the tree"
        if name != "QueasyError":
            assert f"\n| `{name}` |" in page, f"{name} is not in the table"
    named = re.findall(r"^\| `(\w+)` \| ", page.partition("## Exceptions")[0], re.M)
    assert set(named) == set(errors.__all__) - {"QueasyError"}


def test_tree_of_errors_is_that_of_the_code() -> None:
    drawn = (errors.__doc__ or "").split("\n\n")[1]
    of_code = [re.match(r"[ │├└─]*\w+", line) for line in drawn.splitlines()]
    tree = ERRORS.read_text().partition("```\n")[2].partition("```")[0]
    assert tree.splitlines() == [line[0] for line in of_code if line]


def test_errors_of_a_dispatch_are_those_there_are() -> None:
    table = section(DOCS / "guides" / "dispatching.md", "When a dispatch raises")
    named = {getattr(queasy, name) for name in re.findall(r"^\| `(\w+)`", table, re.M)}
    assert named >= {queasy.InvalidInput, queasy.Unreachable, queasy.Unanswered, queasy.NotDurable}
    rare = {queasy.ServerError, queasy.Unsupported, queasy.ProtocolError}
    tree = [queasy.ServerError]
    for kind in tree:
        tree += kind.__subclasses__()
    assert set(tree) - rare == named - {queasy.InvalidInput}


# Commands


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(found.choices)


def test_every_command_and_flag_is_listed() -> None:
    page = CLI.read_text()
    sections = dict(re.findall(r"^## (.*)\n((?:.*\n)*?)(?=^## |\Z)", page, re.M))
    for name, parser in commands().items():
        (text,) = [text for title, text in sections.items() if re.search(rf"\b{name}\b", title)]
        flags = {flag for action in parser._actions for flag in action.option_strings}
        for flag in flags - {"-h", "--help"}:
            assert f"`{flag}" in text, f"queasy {name} {flag} is not listed"
    for flag in set(re.findall(r"^\| `(--[\w-]+)", page, re.M)):
        known = {one for parser in commands().values() for one in parser._option_string_actions}
        assert flag in known, f"{flag} is listed, but does not exist"


def test_defaults_of_the_worker_flags_are_those_listed() -> None:
    rows = dict(re.findall(r"^\| `(--[\w-]+).*?` \| (.*?) \|", section(CLI, "queasy worker"), re.M))
    for action in commands()["worker"]._actions:
        if action.option_strings and action.dest not in ("help", "processes", "queues"):
            listed = rows[action.option_strings[0]]
            default = action.default
            words = {None: "no limit", False: "off"}
            is_text = isinstance(default, str)
            wanted = f"`{default}`" if is_text else words.get(default) or f"{default:g}"
            assert listed == wanted, action.option_strings[0]


# The protocol


def test_protocol_names_every_key_and_function() -> None:
    protocol = PROTOCOL.read_text()
    functions = re.findall(r"^register\('(\w+)'", source(), re.M)
    assert len(functions) >= 20
    for function in functions:
        assert f"`{function}`" in protocol, f"{PREFIX}{function} is not in the protocol"
    listed = re.findall(r"^\| \d+ \| `(\w+)`", protocol, re.M)
    assert tuple(listed) == NAMES


def test_keys_are_in_the_same_order_in_lua_and_python() -> None:
    declared = re.search(r"local NAMES = \{(.*?)\}", source(), re.S)
    assert declared is not None
    assert tuple(re.findall(r"'(\w+)'", declared[1])) == NAMES
