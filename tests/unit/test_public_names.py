"""The public names of ``sluice``."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sluice


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
