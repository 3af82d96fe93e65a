"""A fault planted in a function of the product while a test runs: proof that the test would see it.

To add one, name a function, a piece of its text, and what stands there instead.  The function runs
that text and stays the same object, so modules that imported it run the fault, too.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from types import FunctionType
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Fault:
    """``place`` is ``module:function`` below ``sluice``."""

    wrong: str
    place: str
    old: str
    new: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        function = self._function()
        code = function.__code__
        function.__code__ = self._faulty(function).__code__
        try:
            yield
        finally:
            function.__code__ = code

    def check(self) -> None:
        """Raises AssertionError: the product is not what it was when the fault was thought of."""
        self._faulty(self._function())

    def _function(self) -> FunctionType:
        module, _, path = self.place.partition(":")
        found: Any = import_module(f"sluice.{module}")
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, cached_property):
            found = found.func
        found = inspect.unwrap(found)
        assert isinstance(found, FunctionType), f"{self.place} is no function"
        return found

    def _faulty(self, function: FunctionType) -> FunctionType:
        text = textwrap.dedent(inspect.getsource(function))
        assert self.old in text, f"{self.place} has no {self.old!r} any more: plant another fault"
        lines = text.replace(self.old, self.new, 1).splitlines()
        while lines[0].startswith("@"):
            del lines[0]
        made: dict[str, Any] = {}
        source = "from __future__ import annotations\n" + "\n".join(lines)
        exec(compile(source, f"<{self.place}>", "exec"), function.__globals__, made)  # noqa: S102
        faulty = made[function.__name__]
        assert isinstance(faulty, FunctionType)
        return faulty


@dataclass(frozen=True, slots=True)
class Caught(Fault):
    """A fault, and the *test* that fails of it: by what it asserts, or by an error in ``raises``.

    ``given`` are the arguments that are no fixtures.
    """

    test: Callable[..., None]
    given: Mapping[str, object] = field(default_factory=dict[str, object])
    raises: tuple[type[Exception], ...] = ()

    def __str__(self) -> str:
        return self.wrong


def assert_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    """Run the test of *fault*, with the fixtures of *request*, while the fault is planted."""
    wanted = inspect.signature(fault.test).parameters
    arguments = {
        name: fault.given[name] if name in fault.given else request.getfixturevalue(name)
        for name in wanted
    }
    with (
        fault.planted(),
        pytest.raises((AssertionError, pytest.fail.Exception, *fault.raises)),
    ):
        fault.test(**arguments)
