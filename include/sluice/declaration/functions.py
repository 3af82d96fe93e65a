"""The identity of a user's function: its declared version, or else a digest of its source.

The digest is of syntax trees, so comments, blanks and docstrings play no part, nor does what the
function is called, or where it stands.  It reaches what the function reads of its own project:
functions, classes, and values of its module or of the function around it, and what a decorator
wraps, such as Spark's ``udf``.  What can be filled as it runs (a dict of a module that serves as a
cache) counts as it is written, wherever that is, and an array or a frame as it is filled where the
pipeline is declared.  Libraries play no part, nor does what a function imports, or opens, as it
runs.  Functions of one digest are the same; of those of two nobody knows
whether they mean the same: their author says so by a version.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, date, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache, partial
from importlib.util import resolve_name
from pathlib import Path
from re import Pattern
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TypeAlias, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

_DIGEST_BYTES = 6  # Of two sources of one function: they collide once in 2**48.
_PLAIN = (str, bytes, int, float, complex, bool, Decimal, date, time, timedelta, Enum, type(None))
# Of Python's other classes those of values that never change, and are shown whole; a path may be
# that of where the project is installed.
_SHOWN = (Fraction, range, slice, timezone, UUID, ZoneInfo)
_NO_SOURCE = "no source of"
# DataFrame.createOrReplaceTempView, udf.register and their like, CREATE TEMPORARY VIEW, DECLARE.
_REGISTERS = re.compile(
    rf"temp(orary)?\s*(view|table|function)|\.register\w*\(|\bdeclare\b|{_NO_SOURCE}", re.IGNORECASE
)
# createGlobalTempView, createOrReplaceGlobalTempView, CREATE GLOBAL TEMPORARY VIEW.
_SHARES = re.compile(r"global\s*temp(orary)?\s*view", re.IGNORECASE)
_LIBRARIES = tuple(
    path
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)
_OWN = str(Path(__file__).parents[1])

# Of a field of a frozen dataclass: it plays no part in what a function means.
CHECKS_ONLY = {"sluice": "checks only"}

_Node = TypeVar("_Node", bound=ast.AST)
_Assignment: TypeAlias = ast.Assign | ast.AnnAssign | ast.AugAssign
_Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


def described_function(function: object, version: str | None) -> str:
    """``version 2``, or ``source 1a2b3c4d5e6f``."""
    return f"source {function_digest(function)}" if version is None else f"version {version}"


def function_digest(function: object) -> str:
    """The digest of a function, of an object that can be called, or of a class."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in _pieces(function):
        digest.update(piece.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()


def may_register(function: object) -> bool:
    """Whether a source that the digest of *function* reads gives something a name in its session of
    Spark, as a temporary view, function or variable has; True where there is no source to read.
    """
    return any(map(_REGISTERS.search, _pieces(function)))


def makes_global_views(function: object) -> bool:
    """Whether a source that the digest of *function* reads makes a view that all sessions see."""
    return any(map(_SHARES.search, _pieces(function)))


def _pieces(function: object) -> Iterator[str]:
    whole = function.__self__ if isinstance(function, MethodType) else function
    return _Reading(_package_of(function), whole).pieces(function)


@dataclass(slots=True)
class _Reading:
    """The parts of a function, found by what its source reads."""

    package: str  # The project's, which may be installed among the libraries.
    whole: object  # The object whose function it is.
    seen: set[int] = field(default_factory=set[int])
    written: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def pieces(self, value: object) -> Iterator[str]:
        """Texts that are equal where *value* is."""
        if isinstance(value, MethodType):
            yield from self.pieces(value.__func__)
            value = value.__self__
        if isinstance(value, Pattern):
            yield f"pattern {value.pattern!r} {value.flags}"
        elif isinstance(value, _PLAIN) or (isinstance(value, _SHOWN) and value is not UTC):
            yield repr(value)
        elif isinstance(value, Mapping):
            for pair in value.items():
                yield from self._within(pair)
        elif isinstance(value, tuple | list):
            yield from self._within(value)
        elif isinstance(value, set | frozenset):
            yield from sorted("\0".join(self._within((one,))) for one in value)
        elif hasattr(type(value), "__array__"):
            yield from self._of_array(value)
        elif id(value) in self.seen:
            yield "again"
        else:
            self.seen.add(id(value))
            yield from self._of_object(value)

    def _within(self, values: Iterable[object]) -> Iterator[str]:
        """The pieces of *values*, which say where one with values of its own ends."""
        for one in values:
            if isinstance(one, tuple | list | Mapping | set | frozenset):
                yield f"{len(one)} in one"
            yield from self.pieces(one)

    def _of_array(self, value: object) -> Iterator[str]:
        """An array, a number or a frame of NumPy, pandas, Polars or Arrow, by NumPy's protocol."""
        array = getattr(type(value), "__array__")(value)  # noqa: B009
        yield f"array {array.dtype.str} {array.shape}"
        if array.dtype.hasobject:
            yield from self.pieces(array.tolist())
        else:
            yield hashlib.blake2b(array.tobytes(), digest_size=_DIGEST_BYTES).hexdigest()
        # What a frame is asked by: no identity of these is kept, as Arrow makes its columns anew.
        for labels in ("column_names", "columns", "index"):
            if not callable(found := getattr(value, labels, None)) and found is not None:
                yield from self.pieces(found)

    def _of_object(self, value: object) -> Iterator[str]:
        if isinstance(value, partial):
            yield from self.pieces((value.func, value.args, value.keywords))
        elif isinstance(value, FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, type):
            yield from self._of_class(value)
        else:
            yield from self.pieces(type(value))
            yield from self._of_wrapped(value)
            # What other objects hold may change as they are used: a cache, a client, a counter.
            if value is self.whole:
                yield from self.pieces(getattr(value, "__dict__", {}))
            elif is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009
                meant = [one for one in fields(value) if one.metadata != CHECKS_ONLY]
                yield from self.pieces({one.name: getattr(value, one.name) for one in meant})

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        name = function.__qualname__.rpartition(".")[2]
        if not self._is_read(function):
            yield name
        else:
            code, cells = function.__code__, function.__closure__ or ()
            around = dict(zip(code.co_freevars, map(content, cells), strict=True))
            file = _File(code.co_filename, function.__globals__)
            yield from self._of_node(name, file.node_of(code), file, around)
            yield from self.pieces(function.__defaults__)
            yield from self.pieces(function.__kwdefaults__)
        yield from self._of_wrapped(function)

    def _of_wrapped(self, value: object) -> Iterator[str]:
        """The function of the project that *value* wraps, which may be a library's object."""
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, FunctionType) and self._is_read(wrapped):
            yield from self.pieces(wrapped)
        elif callable(wrapped) and id(wrapped) not in self.seen:
            self.seen.add(id(wrapped))
            yield from self._of_wrapped(wrapped)

    def _of_class(self, cls: type) -> Iterator[str]:
        if not self._is_read(cls):
            yield cls.__qualname__
        else:
            names = vars(sys.modules[cls.__module__])
            file = _File(names.get("__file__") or "", names)
            node = file.scopes.get(cls.__qualname__)
            yield from self._of_node(cls.__qualname__, node, file, {})
            yield from self.pieces(cls.__bases__)

    def _of_node(
        self, called: str, node: _Scope | None, file: _File, around: Mapping[str, object]
    ) -> Iterator[str]:
        """A tree of *file*, or what it is *called* if there is none, and what the names that it
        reads stand for; some are of the function *around* it.
        """
        if node is None:
            yield f"{_NO_SOURCE} {called}"
            return
        text, names = _text_and_names(node)
        yield text
        yield from self._of_names(node, names, file, around)

    def _of_names(
        self, node: ast.AST, names: Iterable[str], file: _File, around: Mapping[str, object]
    ) -> Iterator[str]:
        for name in names:
            value = around.get(name, file.names.get(name))
            if isinstance(value, ModuleType):
                yield from self._of_module(node, name, value)
            elif name not in around and isinstance(value, dict | list | set):
                yield from self._as_written(name, file)
            elif name in around or name in file.names:
                yield name
                yield from self.pieces(value)

    def _as_written(self, name: str, file: _File) -> Iterator[str]:
        """The statements of a *file*'s module that assign *name*, and what they read."""
        statements = file.assigned(name)
        yield f"{name} {'; '.join(map(ast.unparse, statements))}"
        if (file.path, name) in self.written:
            return
        self.written.add((file.path, name))
        for value in (statement.value for statement in statements):
            if value is not None:
                yield from self._of_names(value, _names(value), file, {})
        module, there = file.imported(name)
        if not statements and module is not None and self._is_of_project(module):
            yield from self._as_written(there, _File(module.__file__ or "", vars(module)))

    def _of_module(self, node: ast.AST, name: str, module: ModuleType) -> Iterator[str]:
        """The objects of a *module* of the project, which *node* calls *name*, that it reads."""
        if not self._is_of_project(module):
            return
        read = {
            one.attr
            for one in ast.walk(node)
            if isinstance(one, ast.Attribute)
            and isinstance(one.value, ast.Name | ast.Attribute)
            and ast.unparse(one.value) == name
        }
        file = _File(module.__file__ or "", vars(module))
        for attribute in sorted(read):
            value = file.names.get(attribute)
            yield f"{name}.{attribute}"
            if isinstance(value, ModuleType):
                yield from self._of_module(node, f"{name}.{attribute}", value)
            elif isinstance(value, dict | list | set):
                yield from self._as_written(attribute, file)
            else:
                yield from self.pieces(value)

    def _is_read(self, value: FunctionType | type) -> bool:
        home = value.__module__
        if isinstance(value, FunctionType):  # One of a library may be called as what it wraps.
            home = str(value.__globals__.get("__name__"))
        module = sys.modules.get(home)
        if module is not None:
            return self._is_of_project(module)
        return isinstance(value, FunctionType) and _is_elsewhere(value.__code__.co_filename)

    def _is_of_project(self, module: ModuleType) -> bool:
        """Whether *module* is neither of Python, nor of another library, nor of sluice."""
        if module.__name__.partition(".")[0] == self.package:
            return True
        return _is_elsewhere(getattr(module, "__file__", None) or "")


def _package_of(function: object) -> str:
    """The package of *function*; of one of sluice around a user's that of the user's."""
    if isinstance(function, partial):
        package = _package_of(function.func)
        around = map(_package_of, filter(callable, function.args))
        return next(around, package) if package == __name__.partition(".")[0] else package
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0]


def _is_elsewhere(file: str) -> bool:
    return bool(file) and not file.startswith((*_LIBRARIES, _OWN, "<frozen"))


def content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # A name that is not bound yet.
        return None


@dataclass(frozen=True, slots=True)
class _File:
    """A file of Python, which may lie in an archive, and the names of its module."""

    path: str
    names: Mapping[str, object]

    @property
    def _text(self) -> str:
        return "".join(linecache.getlines(self.path, dict(self.names)))

    @property
    def scopes(self) -> Mapping[str, _Scope]:
        return _scopes(self.path, self._text)

    def assigned(self, name: str) -> tuple[_Assignment, ...]:
        """The statements of the module that assign *name*."""
        return _assignments(self.path, self._text).get(name, ())

    def imported(self, name: str) -> tuple[ModuleType | None, str]:
        """The module from which this one has *name*, if one is loaded, and its name there."""
        for node in ast.walk(_parsed(self.path, self._text)):
            match node:
                case ast.ImportFrom(module=module, names=names, level=level):
                    found = [one.name for one in names if (one.asname or one.name) in (name, "*")]
                    package = str(self.names.get("__package__") or "")
                    home = resolve_name("." * level + (module or ""), package) if found else ""
                    if home and hasattr(sys.modules.get(home), name if "*" in found else found[0]):
                        return sys.modules[home], name if "*" in found else found[0]
                case _:
                    pass
        return None, name

    def node_of(self, code: CodeType) -> _Scope | None:
        """The tree of a function's code, found by where it stands."""
        found = [
            node
            for node in self.scopes.values()
            if _first_line(node) == code.co_firstlineno and _name(node) == code.co_name
        ]
        if len(found) > 1:  # Lambdas of one line: by the places of what is in them; the inner one.
            places = [(line, at) for line, _, at, _ in code.co_positions() if line and at]
            held = [node for node in found if all(_first(node) <= p <= _last(node) for p in places)]
            found = sorted(held, key=_first)
        return found[-1] if found else None


@lru_cache(maxsize=256)
def _assignments(file: str, text: str) -> Mapping[str, tuple[_Assignment, ...]]:
    """By name the statements of a module that assign it."""
    found: dict[str, tuple[_Assignment, ...]] = {}
    waiting: list[ast.AST] = [_parsed(file, text)]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Assign(targets=targets):
                names = [name for target in targets for name in _changed_in(target)]
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                names = [*_changed_in(target)]
            case ast.expr() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case _:
                waiting += reversed([*ast.iter_child_nodes(node)])
                continue
        for name in names:
            found[name] = (*found.get(name, ()), node)
    return found


def _changed_in(target: ast.expr) -> Iterator[str]:
    """The names that an assignment to *target* binds, or changes a part of."""
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _changed_in(part)
        case ast.Subscript(value=of) | ast.Starred(value=of):
            yield from _changed_in(of)
        case _:
            pass


def _parsed(file: str, text: str) -> ast.Module:
    try:
        return ast.parse(text, file)
    except SyntaxError:  # It is no Python, such as the "<stdin>" of a shell.
        return ast.Module(body=[], type_ignores=[])


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

    walk(_parsed(file, text), "")
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


@lru_cache(maxsize=4096)
def _text_and_names(node: _Scope) -> tuple[str, tuple[str, ...]]:
    """A tree without its docstrings and its own name, as Python, and the names that it reads."""
    tree = _without_docstrings(node)
    if not isinstance(tree, ast.Lambda):
        tree.name = ""
    return ast.unparse(tree), _names(node)


def _names(node: ast.AST) -> tuple[str, ...]:
    return tuple(sorted({one.id for one in ast.walk(node) if isinstance(one, ast.Name)}))


def _without_docstrings(node: _Node) -> _Node:
    """A copy of the tree."""
    fields = {name: _copied(value) for name, value in ast.iter_fields(node)}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        match node.body[0]:
            case ast.Expr(value=ast.Constant(value=str())):
                fields["body"] = [_copied(one) for one in node.body[1:]]
            case _:
                pass
    return ast.copy_location(type(node)(**fields), node)


def _copied(value: object) -> object:
    if isinstance(value, ast.AST):
        return _without_docstrings(value)
    return [_copied(one) for one in value] if isinstance(value, list) else value
