"""Finds the client that a worker works for: `module:client`, or `path/app.py:client`."""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import sys
import types
from collections.abc import Callable, Collection, Generator, Sequence
from contextvars import ContextVar
from functools import reduce
from importlib.machinery import ModuleSpec
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from queasy.errors import HandlerNotFound, InvalidInput, InvalidOption
from queasy.handler import name_of
from queasy.registration import HandledQueue
from queasy.worker.plan import Plan

__all__ = [
    "Application",
    "check_exists",
    "check_not_importing",
    "function_reference",
    "importing",
    "load",
    "plan_of",
    "reference_to",
]

# The __name__ of a script in a child, so that its `if __name__ == "__main__"` part does not run.
# multiprocessing uses the same name.
SCRIPT = "__mp_main__"
_importing: ContextVar[str | None] = ContextVar("importing", default=None)


@runtime_checkable
class Application(Protocol):
    """What a worker needs of a client."""

    def plan(self, queues: Collection[str] | None = None) -> Plan:
        """The queues to serve, all if None, and their handlers."""
        ...

    def queue(self, name: str) -> HandledQueue:
        """The queue of this name."""
        ...


@contextlib.contextmanager
def importing(reference: str) -> Generator[None]:
    """Marks that a child imports the application, which must not start workers meanwhile."""
    token = _importing.set(reference)
    try:
        yield
    finally:
        _importing.reset(token)


def check_not_importing() -> None:
    """Raises InvalidInput if a worker is importing the application."""
    if reference := _importing.get():
        raise InvalidInput(
            f"{reference.rpartition(':')[0]} starts workers while a worker imports it: put that "
            'below `if __name__ == "__main__":`'
        )


def _parts(reference: str) -> tuple[str, str]:
    """The module or file of a reference, and the attribute in it."""
    module_name, colon, attribute = reference.partition(":")
    is_name = all(part.isidentifier() for part in module_name.split("."))
    is_file = module_name.endswith(".py") and "\0" not in module_name
    if not colon or not attribute or not (is_name or is_file):
        raise InvalidInput(
            f"app: expected module:client, as in myapp.jobs:client, got {reference!r}"
        )
    return module_name, attribute


def load(reference: str) -> Application:
    """The client that a reference names. Every error says what to do."""
    module_name, attribute = _parts(reference)
    module = _script(module_name) if module_name.endswith(".py") else _module(module_name)
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise HandlerNotFound(
                f"app: {module_name!r} has no {attribute!r}; {_clients_in(module)}"
            )
        found = getattr(found, name)
    if not isinstance(found, Application):
        raise InvalidInput(
            f"app: expected {reference!r} to be a queasy.Client, got {type(found).__name__}"
        )
    return found


def check_exists(reference: str) -> None:
    """Raises unless there is such a module or file. Nothing of it is imported."""
    module_name, _ = _parts(reference)
    if module_name.endswith(".py"):
        _check_file(module_name)
        return
    path: Sequence[str] | None = None
    for name in accumulate(module_name.split("."), "{}.{}".format):
        spec = _spec(name, path)
        if spec is None:
            raise _module_not_found(module_name)
        path = spec.submodule_search_locations
        if path is None or _changes_its_path(spec):
            return  # only an import can say what is inside


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Where Python would import a module from. `importlib.util.find_spec` imports its package."""
    for finder in sys.meta_path:
        find: Callable[..., ModuleSpec | None] | None = getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, path)) is not None:
            return spec
    return None


def _changes_its_path(package: ModuleSpec) -> bool:
    """Whether the code of a package may add folders in which its modules are."""
    read: Callable[[str], str | None] | None = getattr(package.loader, "get_source", None)
    if read is None:  # it has no code
        return False
    try:
        source = read(package.name)
        return source is None or "__path__" in source
    except (ImportError, SyntaxError):
        return True


def plan_of(reference: str, queues: Collection[str] | None) -> Plan:
    """What the workers of this application do. Errors name the application."""
    try:
        return load(reference).plan(queues)
    except InvalidOption as problem:
        raise type(problem)(f"{reference}: {problem}") from None


def _clients_in(module: types.ModuleType) -> str:
    """What to write instead of a name that the module does not have."""
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, Application) and not isinstance(value, type)
    ]
    if not names:
        return "it has no global that is a queasy.Client"
    return "it has " + " and ".join(map(repr, names))


def _module(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{name}.".startswith(f"{problem.name}."):
            raise  # something that the application imports
        raise _module_not_found(name) from None


def _module_not_found(name: str) -> HandlerNotFound:
    return HandlerNotFound(
        f"app: module {name!r} was not found. Python looks for modules in the current folder "
        f"({Path.cwd()}) and in its package folders"
    )


def _check_file(path: str) -> None:
    if not Path(path).is_file():
        raise HandlerNotFound(f"app: file {path!r} was not found in {Path.cwd()}")


def _script(path: str) -> types.ModuleType:
    """The module of a file that is not part of a package; imported once."""
    if SCRIPT not in sys.modules:
        _check_file(path)
        sys.path.insert(0, str(Path(path).parent.absolute()))
        module = types.ModuleType(SCRIPT)
        module.__dict__.update(runpy.run_path(path, run_name=SCRIPT))
        sys.modules[SCRIPT] = module
    return sys.modules[SCRIPT]


def reference_to(client: object) -> str:
    """The reference by which a child finds this client, which must be a global of a module."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(vars(module).items()) if module is not None else ():  # pyright: ignore[reportUnnecessaryComparison]
            if value is client:
                if name != "__main__":
                    return f"{name}:{attribute}"
                path = getattr(module, "__file__", None)
                if path and os.path.exists(path):  # noqa: PTH110 - as Python wrote it
                    spec = getattr(module, "__spec__", None)
                    return f"{spec.name if spec else path}:{attribute}"
    raise InvalidInput(
        "processes: expected 0, or a client that is a global of a module (client = Client() "
        "outside any function), got another client: child processes import it by its name"
    )


def function_reference(function: Callable[..., Any], app: str) -> str:
    """The reference by which a child of this application imports a function."""
    name = name_of(function)
    module, _, path = name.partition(":")
    try:
        found = reduce(getattr, path.split("."), cast("Any", sys.modules[module]))
    except (AttributeError, KeyError):
        found = None
    if module == "__main__" and found is function:
        spec = getattr(sys.modules[module], "__spec__", None)
        is_app = app.rpartition(":")[0].endswith(".py")  # then children import the script, too
        module = spec.name if spec else SCRIPT if is_app else ""
    if found is not function or not module:
        raise InvalidOption(
            "processes: expected 0, or functions that child processes can import by their names, "
            f"got {name}. Define it at the top of a module, beside the client or in a module that "
            "is no script"
        )
    return f"{module}:{path}"
