"""How a fault is planted: one piece of one function's text is another, and the function runs that.

The function object stays, so modules that imported it run the fault, too.
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

from tests.fuzz.plans import Checkpoint, Plan, Restore


@dataclass(frozen=True, slots=True)
class Mutation:
    """``place`` is ``module:function`` below ``sluice``; ``ops``: only plans with one of these can
    see it, empty for any; and they need all of ``needs``.  See ``features``.
    """

    wrong: str
    place: str
    old: str
    new: str
    ops: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def may_show_in(self, plan: Plan) -> bool:
        found = features(plan)
        return (not self.ops or bool(found & {*self.ops})) and found >= {*self.needs}

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


def features(plan: Plan) -> set[str]:
    """What a fault may hide in: operations, aggregates, windows, joins, sinks, acts."""
    found = {stage.op for stage in plan.stages}
    for stage in plan.stages:
        found |= {one[0] for one in stage.args.get("aggregates", {}).values()}
        found |= {str(stage.args[name]) for name in ("how", "keep") if name in stage.args}
        found |= {stage.args["window"][0]} if "window" in stage.args else set()
        found |= {name for name in ("ties", "lateness") if stage.args.get(name)}
        found |= {"filtered"} if stage.where else set()
        found |= {"behind"} if any(plan.source(i.producer) is None for i in stage.inputs) else set()
    found |= {"chained"} if "behind" in found and plan.is_chained and plan.way == "plain" else set()
    found |= {stage.args["lists"] for stage in plan.stages if "lists" in stage.args}
    found |= {"changelog" if one.changelog else "upsert" for one in plan.sinks if _is_special(one)}
    found |= {"capped"} if plan.max_records else set()
    found |= {*plan.tuning, plan.way, *(("parallel",) if plan.parallelism > 1 else ())}
    found |= _unaligned(plan) if plan.unaligned else set()
    found |= {"restore" for act in plan.acts if isinstance(act, Restore)}
    rescaled = [act for act in plan.acts if isinstance(act, Restore) and act.parallelism]
    found |= {"rescale"} if rescaled else set()
    checkpoints = sum(isinstance(act, Checkpoint) for act in plan.acts)
    found |= {"epochs"} if checkpoints > 1 else set()
    return found


def _unaligned(plan: Plan) -> set[str]:
    """Rows come later the more stages are before them: ``uneven`` inputs differ in that, and one
    of ``waiting_source`` is a source, whose rows cannot wait for the columns of the other.
    """
    depth = {source.uid: 0 for source in plan.sources}
    found = {"unaligned", plan.unaligned}
    for stage in plan.stages:
        depths = {depth[given.producer] for given in stage.inputs}
        depth[stage.uid] = 1 + max(depths)
        if max(depths) > 1 and len(depths) > 1:
            found.add("waiting_source" if 0 in depths else "uneven")
    return found


def _is_special(sink: Any) -> bool:
    return bool(sink.changelog or sink.upsert_key)
