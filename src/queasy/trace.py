"""Tracebacks as text. They are cached, because the same few lines fail again and again."""

from __future__ import annotations

import contextlib
import traceback
from types import CodeType, TracebackType

__all__ = ["trace_of"]

# With the file name: code objects of two files may be equal.
_Location = tuple[str, CodeType, int]

# Their text has more than type and message: a line of code, members, a suggestion.
DETAILED_ERRORS = (SyntaxError, BaseExceptionGroup, NameError, AttributeError, ImportError)
# Counts places in the code, not errors: a program has few places that fail.
MAX_CACHED_STACKS = 1000
_stack_texts: dict[tuple[_Location, ...], str] = {}


def trace_of(error: BaseException) -> str:
    """The text of `traceback.format_exception`; without causes and notes if the exception breaks
    its formatting.
    """
    with contextlib.suppress(Exception):  # a class may define how its attributes are read
        if not _is_plain(error):
            return "".join(traceback.format_exception(error))
    return f"{_frames(error.__traceback__)}{_last_line(error)}"


def _is_plain(error: BaseException) -> bool:
    """Whether the text is only a stack, a type and a message."""
    chained = error.__cause__ or (error.__context__ and not error.__suppress_context__)
    return not chained and not isinstance(error, DETAILED_ERRORS) and "__notes__" not in vars(error)


def _frames(stack: TracebackType | None) -> str:
    places: list[_Location] = []
    entry = stack
    while entry is not None:
        code = entry.tb_frame.f_code
        places.append((code.co_filename, code, entry.tb_lasti))
        entry = entry.tb_next
    key = tuple(places)
    text = _stack_texts.get(key)
    if text is None:
        lines = traceback.format_tb(stack)
        text = "".join(["Traceback (most recent call last):\n", *lines]) if lines else ""
        if len(_stack_texts) >= MAX_CACHED_STACKS:
            _stack_texts.clear()
        _stack_texts[key] = text
    return text


def _last_line(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("__main__", "builtins"):
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except Exception:
        message = "<exception str() failed>"  # the text that Python uses
    return f"{name}: {message}\n" if message else f"{name}\n"
