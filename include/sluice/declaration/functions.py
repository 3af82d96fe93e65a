"""What a user's function is: its declared version, or else a digest of its source.

The digest is of syntax trees, so comments, blanks and docstrings play no part.  It reaches what the
function reads of its own project: functions, classes, and plain values of its module or of the
function around it.  Libraries play no part, nor does a file that a function opens.  Functions of
one digest are the same; of those of two nobody knows whether they mean the same: their author says
so by a version.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path
from re import Pattern
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TypeAlias

_DIGEST_BYTES = 6  # Of two sources of one function: they collide once in 2**48.
_PLAIN = (str, bytes, int, float, complex, bool, Decimal, date, time, timedelta, Enum, type(None))
_LIBRARIES = tuple(
    path
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)
_OWN = str(Path(__file__).parents[1])

_Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


def described_function(function: object, version: str | None) -> str:
    """``parse version 2``, or ``parse source 1a2b3c4d5e6f``."""
    named = function.func if isinstance(function, partial) else function
    name = getattr(named, "__name__", type(named).__name__)
    return (
        f"{name} version {version}"
        if version is not None
        else f"{name} source {digest_of(function)}"
    )


def digest_of(function: object) -> str:
    """The digest of a function, of an object that can be called, or of a class."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    whole = function.__self__ if isinstance(function, MethodType) else function
    for piece in _Reading(_package_of(function), whole).pieces(function):
        digest.update(piece.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()


@dataclass(slots=True)
class _Reading:
    """What a function consists of, found by what its source reads."""

    package: str  # The project's, which may be installed among the libraries.
    whole: object  # The object whose function it is.
    seen: set[int] = field(default_factory=set[int])

    def pieces(self, value: object) -> Iterator[str]:
        """Texts that are equal where *value* is."""
        if isinstance(value, MethodType):
            yield from self.pieces(value.__func__)
            value = value.__self__
        if isinstance(value, Pattern):
            yield f"pattern {value.pattern!r} {value.flags}"
        elif isinstance(value, _PLAIN):
            yield repr(value)
        elif isinstance(value, Mapping):
            for key, one in value.items():
                yield repr(key)
                yield from self.pieces(one)
        elif isinstance(value, tuple | list):
            for one in value:
                yield from self.pieces(one)
        elif isinstance(value, set | frozenset):
            yield from sorted(map(repr, value))
        elif id(value) in self.seen:
            yield "again"
        else:
            self.seen.add(id(value))
            yield from self._of_object(value)

    def _of_object(self, value: object) -> Iterator[str]:
        if isinstance(value, partial):
            yield from self.pieces((value.func, value.args, value.keywords))
        elif isinstance(value, FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, type):
            yield from self._of_class(value)
        else:
            yield from self.pieces(type(value))
            # What other objects hold may change as they are used: a cache, a client, a counter.
            if value is self.whole:
                yield from self.pieces(getattr(value, "__dict__", {}))
            elif is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009
                yield from self.pieces(
                    {one.name: getattr(value, one.name) for one in fields(value)}
                )

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        yield function.__qualname__.rpartition(".")[2]
        if self._is_read(function):
            code, cells = function.__code__, function.__closure__ or ()
            around = dict(zip(code.co_freevars, map(_content, cells), strict=True))
            yield from self._of_node(_node_of(code), {**function.__globals__, **around})
            yield from self.pieces((function.__defaults__, function.__kwdefaults__))

    def _of_class(self, cls: type) -> Iterator[str]:
        yield cls.__qualname__
        if self._is_read(cls):
            module = sys.modules.get(cls.__module__)
            file = getattr(module, "__file__", None) or ""
            node = _scopes(file, _text(file)).get(cls.__qualname__)
            yield from self._of_node(node, {} if module is None else vars(module))
            yield from self.pieces(cls.__bases__)

    def _of_node(self, node: ast.AST | None, names: Mapping[str, object]) -> Iterator[str]:
        """A tree, and what the names that it reads stand for."""
        if node is None:
            yield "no source"
            return
        yield ast.dump(_without_docstrings(node))
        for name, value in sorted(self._read_by(node, names).items()):
            yield name
            yield from self.pieces(value)

    def _read_by(self, node: ast.AST, names: Mapping[str, object]) -> dict[str, object]:
        """What *node* reads by name, and of modules of the project by attribute."""
        found: dict[str, object] = {}
        for one in ast.walk(node):
            match one:
                case ast.Name(id=name) if name in names:
                    if not isinstance(names[name], ModuleType):
                        found[name] = names[name]
                case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                    module = names.get(name)
                    if isinstance(module, ModuleType) and self._is_of_project(module):
                        found[f"{name}.{attribute}"] = getattr(module, attribute, None)
                case _:
                    pass
        return found

    def _is_read(self, value: FunctionType | type) -> bool:
        module = sys.modules.get(value.__module__)
        if module is not None:
            return self._is_of_project(module)
        return isinstance(value, FunctionType) and _is_elsewhere(value.__code__.co_filename)

    def _is_of_project(self, module: ModuleType) -> bool:
        """Whether *module* is neither of Python, nor of another library, nor of sluice."""
        if module.__name__.partition(".")[0] == self.package:
            return True
        return _is_elsewhere(getattr(module, "__file__", None) or "")


def _package_of(function: object) -> str:
    named = function.func if isinstance(function, partial) else function
    module = getattr(named, "__module__", None) or type(named).__module__
    return str(module).partition(".")[0]


def _is_elsewhere(file: str) -> bool:
    return bool(file) and not file.startswith((*_LIBRARIES, _OWN, "<frozen"))


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # A name that is not bound yet.
        return None


def _text(file: str) -> str:
    return "".join(linecache.getlines(file))


def _node_of(code: CodeType) -> ast.AST | None:
    """The tree of a function's code, found in its file by where it stands."""
    found = [
        node
        for node in _scopes(code.co_filename, _text(code.co_filename)).values()
        if _first_line(node) == code.co_firstlineno and _name(node) == code.co_name
    ]
    if len(found) > 1:  # Lambdas of one line: by the places of what is in them; the inner one.
        places = [(line, at) for line, _, at, _ in code.co_positions() if line and at]
        held = [node for node in found if all(_first(node) <= p <= _last(node) for p in places)]
        found = sorted(held, key=_first)
    return found[-1] if found else None


@lru_cache(maxsize=256)
def _scopes(file: str, text: str) -> Mapping[str, _Scope]:
    """Every function and class of a file by its qualified name, with a number if it is not new."""
    found: dict[str, _Scope] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = prefix
            if isinstance(child, _Scope):
                name = prefix + _name(child)
                found[name if name not in found else f"{name} {len(found)}"] = child
                inside = f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>."
            walk(child, inside)

    try:
        walk(ast.parse(text, file), "")
    except SyntaxError:  # It is no Python, such as the "<stdin>" of a shell.
        return {}
    return found


def _name(node: _Scope) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _first_line(node: _Scope) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(one.lineno for one in (node, *decorators))


def _first(node: _Scope) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _last(node: _Scope) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _without_docstrings(node: ast.AST) -> ast.AST:
    """A copy of the tree."""
    fields = {name: _copied(value) for name, value in ast.iter_fields(node)}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        match node.body[0]:
            case ast.Expr(value=ast.Constant(value=str())):
                fields["body"] = [_copied(one) for one in node.body[1:]]
            case _:
                pass
    return type(node)(**fields)


def _copied(value: object) -> object:
    if isinstance(value, ast.AST):
        return _without_docstrings(value)
    return [_copied(one) for one in value] if isinstance(value, list) else value
