"""Error replies and cluster slots, compared with redis-py."""

import pytest
import redis.crc
from redis.connection import DefaultParser

from queasy.store.net import server_errors
from queasy.store.net.topology import key_slot

WORDS = [
    "ERR unknown command 'NONSENSE', with args beginning with: ",
    "ERR Function not found",
    "ERR invalid password",
    "ERR max number of clients reached",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "NOAUTH Authentication required.",
    "NOPERM User worker has no permissions to run the 'flushall' command",
    "LOADING Valkey is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "BUSY The server is busy running a script.",
    "QUEASYBAD limit: expected a number",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "DENIED it is running in protected mode",
    "ERR",
    "",
]


@pytest.mark.parametrize("words", WORDS)
def test_an_error_reply_is_parsed_as_redis_py_does(words: str) -> None:
    ours = server_errors.parse_error(words)
    theirs = DefaultParser.parse_error(words)
    assert str(ours) == str(theirs)
    if type(theirs).__name__ != "ConnectionError":
        assert type(ours).__name__ == type(theirs).__name__
        assert isinstance(ours, server_errors.ResponseError)


@pytest.mark.parametrize("word", ["MOVED", "ASK"])
def test_a_redirection_names_slot_and_address(word: str) -> None:
    for node in ("127.0.0.1:7000", "::1:7000", "some.host:1", ":6379"):
        ours = server_errors.parse_error(f"{word} 3999 {node}")
        assert isinstance(ours, server_errors.AskError)
        assert isinstance(ours, server_errors.MovedError) == (word == "MOVED")
        theirs = DefaultParser.parse_error(f"{word} 3999 {node}")
        assert (ours.slot_id, ours.host, ours.port) == (3999, theirs.host, theirs.port)
    assert type(server_errors.parse_error(f"{word} nowhere")) is server_errors.ResponseError


@pytest.mark.parametrize("key", ["", "a", "{a}b", "x{a}{b}", "{}a", "a{b", "a}b{c}", "ü{ö}"])
def test_the_slot_of_a_key_is_the_one_of_redis_py(key: str) -> None:
    assert key_slot(key.encode()) == redis.crc.key_slot(key.encode())
