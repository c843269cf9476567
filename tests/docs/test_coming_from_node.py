"""The tables of the page about Queasy for Node name what there is, with its defaults."""

import inspect
import re

from queasy import SyncClient
from queasy.interop import node, node_library
from tests.docs.pages import DOCS, section

PAGE = DOCS / "guides" / "coming-from-queasy-for-node.md"


def test_every_method_of_a_queue_is_in_the_table_of_names() -> None:
    table = section(PAGE, "Names")
    shown = set(re.findall(r"`(\w+)\(", table)) | {"fail_queue"}
    methods = {name for name in vars(node.Queue) if not name.startswith("_")}
    assert methods <= shown, methods - shown


def test_defaults_in_the_table_are_those_of_the_code() -> None:
    table = section(PAGE, "Options and defaults")
    queue = node.Queue(SyncClient("redis://127.0.0.1:1"), "emails")  # it sends nothing
    options = inspect.signature(queue.dispatch).parameters
    for name in ("update_data", "update_run_at"):
        assert re.search(rf"\| `{name}`.* \| {options[name].default} \|", table), name
    job = node.Job("a", b"1", 0, 0, "c")
    backoffs = [node.Job("a", b"1", count, 0, "c").backoff for count in (1, 50)]
    assert [job.backoff, *backoffs] == [2, 4, 300]
    assert "2 seconds, doubled up to 300" in table
    assert node.HEARTBEAT_TIMEOUT == 10
    assert "| 10 seconds |" in table


def test_functions_in_the_table_are_those_that_the_library_registers() -> None:
    table = section(PAGE, "Which library does the server have?")
    shown = re.findall(r"^\| `queasy_(\w+)` \| ", table, re.M)
    registered = re.findall(r"^register\('(\w+)', API", node_library.NODE.source(), re.M)
    assert shown == registered


def test_arguments_in_the_table_are_those_of_the_headers() -> None:
    table = section(PAGE, "Which library does the server have?")
    source = node_library.NODE.source()
    rows = re.findall(r"^\| `queasy_(\w+)` \| .*? \| (.*?) \| .*? \|$", table, re.M)
    assert len(rows) == 8
    for name, arguments in rows:
        header = re.search(
            rf"^-- {name}: (?:.*\n--)*?   args   (.*(?:\n--      .*)*)", source, re.M
        )
        assert header is not None, name
        names = re.sub(r"\(.*?\)|\n-- ", "", header[1])
        assert re.findall(r"\w+", names) == re.findall(r"\w+", arguments), name
