"""The arguments of a client are checked when it is made: no server is contacted."""

import math
from typing import Any

import pytest

from queasy import (
    Client,
    InvalidInput,
    InvalidOption,
    InvalidQueue,
)
from tests.unit.ids import short

BAD_NAMES = [
    "",
    "a{b",
    "a}b",
    "a b",
    "a\tb",
    "a\nb",
    "a\0b",
    "a\x7fb",
    "x" * 201,
    5,
    None,
    "\ud800",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_queue_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidQueue, match="queue name"):
        Client("redis://127.0.0.1:1").queue(name)
    with pytest.raises(InvalidQueue, match="prefix"):
        Client("redis://127.0.0.1:1", prefix=name)


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": math.nan},
        {"max_payload": 0},
        {"max_payload": "1"},
    ],
)
def test_bad_client_arguments_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(InvalidInput, match=name):
        Client("redis://127.0.0.1:1", **arguments)


def test_url_and_folder_together_are_refused() -> None:
    with pytest.raises(InvalidOption, match="got both"):
        Client("redis://127.0.0.1:1", folder="somewhere")


@pytest.mark.parametrize("folder", [5, "", "a\0b"], ids=short)
def test_bad_folder_is_refused(folder: Any) -> None:
    with pytest.raises(InvalidOption, match="folder"):
        Client(folder=folder)
