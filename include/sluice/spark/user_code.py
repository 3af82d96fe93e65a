"""The user's functions, pickled by value, so that their code is sent to Spark's workers.

The module that defines them may not be installed where Spark runs.  The whole package of a
project's pipelines is sent, so a function may call one in another module; anything else that they
import must be installed on the workers.
"""

from __future__ import annotations

import sys
from functools import partial

from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Process, ProcessKeyed, Transform
from sluice.declaration.project import package_of


def take_along(node: StageNode) -> None:
    """Pickle the functions of the stage by value, and the UDFs that a transform makes."""
    match node.operation:
        case Transform(function=function):
            _register(package_of(_module_of(function)))  # It runs here: only its UDFs are sent.
        case Process(function=function) | ProcessKeyed(function=function):
            module = _module_of(function)
            _register(package_of(module) or module)
        case _:
            pass


def _module_of(function: object) -> str:
    while isinstance(function, partial):
        function = function.func
    module: str = getattr(function, "__module__", type(function).__module__)
    return module


def _register(name: str | None) -> None:
    from pyspark import cloudpickle

    module = None if name is None else sys.modules.get(name)
    if module is not None and not module.__name__.startswith(("sluice.", "__main__")):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
