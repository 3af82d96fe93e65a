"""How a fault is planted: one piece of one function's text is another, and the function runs that.

The function object stays, so whoever imported it runs the fault, too.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutation:
    """``place`` is ``module:function`` below ``sluice``; ``ops``: only plans with one of these
    operations can see it, empty for any.
    """

    wrong: str
    place: str
    old: str
    new: str
    ops: tuple[str, ...] = ()

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
