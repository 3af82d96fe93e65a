"""The public names: ``sluice``, its sources and sinks, and names of earlier versions."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sluice
from sluice.moved import MODULES


def test_every_public_name_is_there_and_known_to_type_checkers() -> None:
    tree = ast.parse(Path(sluice.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert sorted(typed) == sorted(sluice.__all__)
    assert all(getattr(sluice, name) is not None for name in sluice.__all__)
    assert set(sluice.__all__) <= set(dir(sluice))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sluice' has no attribute 'nobody'"):
        _ = sluice.nobody


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_of_an_earlier_version_is_the_one_of_today(name: str) -> None:
    sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match=f"{name} has moved to {MODULES[name]}"):
        earlier = import_module(name)

    assert earlier is import_module(MODULES[name])
    assert earlier.__spec__ is not None
    assert earlier.__spec__.name == MODULES[name]


@pytest.mark.parametrize("name", ["ValueState", "ListState", "MapState", "KeyedProcessFunction"])
def test_what_an_earlier_module_had_is_there_still(name: str) -> None:
    sys.modules.pop("sluice.keyed_process", None)
    with pytest.warns(DeprecationWarning, match="sluice.keyed_process has moved"):
        earlier = import_module("sluice.keyed_process")

    assert getattr(earlier, name) is getattr(sluice, name)
