"""What a user's function is: its source, what that reads of its project, and what is refused."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sluice.declaration
from sluice.declaration.functions import (
    described_function,
    function_digest,
    makes_global_views,
    may_register,
)
from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import ValueState
from sluice.declaration.pipeline import KeyedStream, Pipeline
from sluice.errors import ConfigurationError
from sluice.sources import Column, Nexmark, Snapshot, SparkRead
from tests.patching import replace_in

SCHEMA = "id bigint, at timestamp"
FUNCTIONS = "sluice.declaration.functions"
OWN = str(Path(sluice.declaration.__path__[0]).parent)
FUNCTION = '''
import re
import json
import beside
from beside import helped

LIMIT = 3
PATTERN = re.compile("a+")
RATES = {"EUR": 1.1}
NAMES = {"a", "b"}

def parse(rows, more=2):
    """What it does."""
    return beside.shift(helped(rows, LIMIT), PATTERN, RATES, NAMES, json.dumps, more)

class Counting:
    """Counts."""
    step = 1

    def process(self, row):
        return row + self.step + LIMIT

class Fast(Counting):
    pass

def outer(limit):
    def inner(rows):
        return rows + limit
    return inner

pair = (lambda rows: rows + 1), (lambda rows: rows + 2)
recursive = lambda n: recursive(n - 1) if n else 0
'''
BESIDE = """
def helped(rows, limit):
    return rows[:limit]

def shift(rows, *_):
    return rows
"""


CACHE = """
SEEN: dict[str, int] = {}
SEEN["first"] = 1

def remember(rows):
    SEEN[str(rows)] = 1
    return SEEN
"""


OF_OTHERS = """
import functools
from pyspark.sql.connect.functions import udf
from pyspark.sql.types import LongType
import project.rates
from project.rates import EUR as OTHERS
from project.more import *

BASE = 10
LIMITS = {"a": BASE}
PAIRS = ((1, 2), (3,))
FILLED, COUNT = {}, 1
FILLED["first"] = 5
if COUNT:
    CHOSEN = ["a"]

@udf(LongType())
def cleaned(value):
    return value + 1

@functools.cache
def known(value):
    return value + 2

def parse(rows):
    read = LIMITS, PAIRS, FILLED, CHOSEN, OTHERS, LISTED, project.rates.USD, project.rates.NAMED
    return rows.select(cleaned("a"), known(1)), read
"""
RATES = "EUR = {'of': 1}\nUSD = 2\nNAMED = {'of': USD}\n"


@pytest.fixture(name="load")
def loading(tmp_path: Path) -> Iterator[Any]:
    loaded: list[str] = []
    number = iter(range(100))

    def load(text: str, name: str = "project_module") -> Any:
        file = tmp_path / str(next(number)) / f"{name}.py"
        file.parent.mkdir()
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        loaded.append(name)
        spec.loader.exec_module(module)
        return module

    load(BESIDE, "beside")
    yield load
    for name in loaded:
        sys.modules.pop(name, None)


def test_comments_blanks_and_docstrings_play_no_part(load: Any) -> None:
    before = load(FUNCTION)
    digests = [function_digest(before.parse), function_digest(before.Fast)]

    after = load(
        "# A comment.\n\n"
        + FUNCTION.replace("What it does.", "Other words.").replace("Counts.", "It counts.")
    )

    assert [function_digest(after.parse), function_digest(after.Fast)] == digests


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ('"a+"', '"b+"'),
        ("1.1", "1.2"),
        ('{"a", "b"}', '{"a"}'),
        ("json.dumps, more", "json.dumps"),
        ("more=2", "more=3"),
    ],
)
def test_what_it_reads_plays_a_part(old: str, new: str, load: Any) -> None:
    before = function_digest(load(FUNCTION).parse)

    assert function_digest(load(FUNCTION.replace(old, new)).parse) != before


@pytest.mark.parametrize(
    ("old", "new"), [("[:limit]", "[limit:]"), ("return rows\n", "return 1\n")]
)
def test_functions_beside_it_play_a_part(old: str, new: str, load: Any) -> None:
    before = function_digest(load(FUNCTION).parse)
    load(BESIDE.replace(old, new), "beside")

    assert function_digest(load(FUNCTION).parse) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BASE = 10", "BASE = 20"),  # Which a dict reads.
        ("((1, 2), (3,))", "((1,), (2, 3))"),
        ("= 5", "= 6"),
        ('["a"]', '["b"]'),
        ("value + 1", "value - 1"),  # Within an object of Spark's,
        ("value + 2", "value - 2"),  # and of Python's.
        ("{'of': 1}", "{'of': 9}"),  # Of another module, by a name of its own,
        ("USD = 2", "USD = 3"),  # by the module's,
        ("[7]", "[8]"),  # by all of its names.
    ],
)
def test_what_it_reads_through_others_plays_a_part(old: str, new: str, load: Any) -> None:
    def digest(*texts: str) -> str:
        for text, name in zip(texts, ("project", "project.rates", "project.more"), strict=False):
            module = load(text, name)
            if "." in name:
                setattr(sys.modules["project"], name.rpartition(".")[2], module)
        return function_digest(load(texts[-1]).parse)

    texts = ("", RATES, "LISTED = [7]\n", OF_OTHERS)

    assert digest(*texts) == digest(*texts)
    assert digest(*texts) != digest(*(text.replace(old, new) for text in texts))


def test_another_function_of_the_file_does_not(load: Any) -> None:
    before = function_digest(load(FUNCTION).parse)

    assert function_digest(load(FUNCTION.replace("n - 1", "n - 2")).parse) == before


def test_a_class_is_its_bases_its_values_and_what_they_read(load: Any) -> None:
    first = load(FUNCTION)
    one, other = first.Fast(), first.Fast()
    other.step = 2
    before = function_digest(one)

    assert function_digest(first.Fast()) == before
    assert function_digest(other) != before
    assert function_digest(one.process) == function_digest(first.Fast().process)
    assert function_digest(load(FUNCTION.replace("step = 1", "step = 2")).Fast()) != before
    assert function_digest(load(FUNCTION.replace("LIMIT = 3", "LIMIT = 4")).Fast()) != before


def test_lambdas_of_one_line_are_told_apart(load: Any) -> None:
    one, other = load(FUNCTION).pair
    again, _ = load(FUNCTION.replace("rows + 2", "rows + 3")).pair

    assert function_digest(one) != function_digest(other)
    assert function_digest(one) == function_digest(again)


def test_a_function_that_reads_itself_ends(load: Any) -> None:
    assert function_digest(load(FUNCTION).recursive) == function_digest(load(FUNCTION).recursive)


def test_what_it_encloses_and_what_it_is_given_play_a_part(load: Any) -> None:
    module = load(FUNCTION)

    assert function_digest(module.outer(1)) != function_digest(module.outer(2))
    assert function_digest(partial(module.parse, more=1)) != function_digest(
        partial(module.parse, more=5)
    )


@pytest.mark.parametrize("name", ["parse", "Fast"])
def test_what_a_function_is_called_and_where_it_stands_plays_no_part(name: str, load: Any) -> None:
    before = getattr(load(FUNCTION), name)
    after = load(re.sub(rf"\b{name}\b", "renamed", FUNCTION), "other_module").renamed

    assert described_function(after, None) == described_function(before, None)
    assert described_function(after, "2") == described_function(before, "2") == "version 2"


@dataclass(frozen=True)
class Settings:
    limit: int


class Client:
    def __init__(self) -> None:
        self.calls: list[int] = []


class Asking:
    def __init__(self, settings: Settings, client: Client) -> None:
        self.settings, self.client = settings, client

    def __call__(self) -> None: ...


def test_of_what_an_object_holds_only_what_cannot_change_plays_a_part() -> None:
    used = Client()
    used.calls.append(1)

    assert function_digest(Asking(Settings(1), Client())) == function_digest(
        Asking(Settings(1), used)
    )
    assert function_digest(Asking(Settings(1), Client())) != function_digest(
        Asking(Settings(2), Client())
    )


def a_table(spark: Any) -> Any:
    return spark.table("sales")


@pytest.mark.parametrize("by", [Snapshot("id"), Column("at", "id", timedelta(seconds=5))])
def test_what_sluice_does_around_a_function_plays_no_part(
    by: Snapshot | Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SparkRead(a_table, SCHEMA, by, every=timedelta(minutes=1))
    before = function_digest(read.reading().function)
    getlines = linecache.getlines

    def changed(path: str, names: Any = None) -> list[str]:
        return [line.replace("spark", "session") for line in getlines(path, names)]

    def changed_here(path: str, names: Any = None) -> list[str]:
        return changed(path, names) if path.startswith(OWN) else getlines(path, names)

    replace_in(monkeypatch, FUNCTIONS, "linecache", getlines=changed_here)
    assert function_digest(read.reading().function) == before
    replace_in(monkeypatch, FUNCTIONS, "linecache", getlines=changed)
    assert function_digest(read.reading().function) != before


def test_a_check_of_what_is_read_plays_no_part() -> None:
    def digest(**lags: timedelta) -> str:
        read = SparkRead(a_table, SCHEMA, Column("at", "id", **lags), every=timedelta(minutes=1))
        return function_digest(read.reading().function)

    assert digest(checked_lag=timedelta(hours=1)) == digest()
    assert digest(lag=timedelta(hours=1)) != digest()


def test_a_library_plays_no_part_and_a_function_without_source_is_its_name() -> None:
    namespace: dict[str, Any] = {"__name__": "nowhere"}
    exec("def shown(rows): return rows\ndef other(rows): return 1", namespace)  # noqa: S102

    assert function_digest(Path.exists) == function_digest(Path.exists)
    assert function_digest(namespace["shown"]) != function_digest(namespace["other"])
    assert described_function(print, None).startswith("source ")


@pytest.mark.parametrize(
    ("body", "registers"),
    [
        ("return rows.where('id > 1')", False),
        ("'''createOrReplaceTempView'''\n    return rows", False),
        ("rows.createOrReplaceTempView('v')\n    return rows", True),
        ("return helped(rows)", True),
        ("return rows.sparkSession.sql('create or replace temporary  view v as select 1')", True),
        ("rows.sparkSession.udf.register('f', helped)\n    return rows", True),
        ("rows.sparkSession.sql('DECLARE VARIABLE x = 1')\n    return rows", True),
        ("rows.createOrReplaceGlobalTempView('v')\n    return rows", "for all"),
        ("rows.sparkSession.sql('create global  temporary view v as select 1')", "for all"),
    ],
)
def test_what_a_function_names_in_its_session_is_found(
    body: str, registers: bool | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helped = "def helped(rows):\n    rows.createTempView('v')\n    return rows\n"
    text = f"{helped}\n\ndef parse(rows):\n    {body}\n"
    (tmp_path / "registering.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()

    parse = importlib.import_module("registering").parse
    sys.modules.pop("registering")

    assert may_register(parse) is bool(registers)
    assert makes_global_views(parse) is (registers == "for all")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("zoneinfo.ZoneInfo('Europe/Berlin')", "zoneinfo.ZoneInfo('America/New_York')"),
        ("datetime.timezone.utc", "datetime.timezone(datetime.timedelta(hours=1))"),
        ("range(9, 17)", "range(9, 18)"),
        ("slice(0, 3)", "slice(0, 4)"),
        ("uuid.UUID(int=1)", "uuid.UUID(int=2)"),
        ("fractions.Fraction(1, 3)", "fractions.Fraction(2, 3)"),
        ("({'a': {'b': 1}, 'c': 2},)", "({'a': {'b': 1, 'c': 2}},)"),
        ("({'a': ['b'], 'c': []},)", "({'a': ['b', 'c']},)"),
        ("({1}, 2)", "({1, 2},)"),
        ("numpy.array([1, 2])", "numpy.array([1, 3])"),
        ("numpy.array([1, 2])", "numpy.array([[1, 2]])"),
        ("numpy.array([1])", "numpy.array([1.0])"),
        ("numpy.array([1, 'x'], object)", "numpy.array([1, 'y'], object)"),
        ("numpy.int64(1)", "numpy.int64(2)"),
        ("[polars.Series([1])]", "[polars.Series([2])]"),
        ("polars.DataFrame({'a': [1]})", "polars.DataFrame({'b': [1]})"),
        ("pandas.Series([1], index=['a'])", "pandas.Series([1], index=['b'])"),
        ("pandas.DataFrame({'a': ['x']})", "pandas.DataFrame({'a': ['y']})"),
        ("pyarrow.array([1])", "pyarrow.array([2])"),
        ("pyarrow.table({'a': ['x']})", "pyarrow.table({'a': ['y']})"),
        ("pyarrow.table({'a': [1]})", "pyarrow.table({'b': [1]})"),
    ],
)
def test_a_value_that_is_written_beside_a_function_plays_a_part(
    before: str, now: str, load: Any
) -> None:
    modules = "import datetime, fractions, uuid, zoneinfo, numpy, pandas, polars, pyarrow\n"
    text = modules + "VALUE = {}\ndef chosen(rows):\n    return rows, VALUE\n"
    digests = [function_digest(load(text.replace("{}", one)).chosen) for one in (before, now)]

    assert digests[0] != digests[1]
    assert digests[0] == function_digest(load(text.replace("{}", before)).chosen)


def test_a_name_that_is_not_bound_yet_is_none() -> None:
    def outer() -> Any:
        def inner() -> Any:
            return later

        digest = function_digest(inner)
        later = 1
        return digest, function_digest(inner)

    before, after = outer()
    assert before != after


def test_a_cache_of_its_module_counts_as_it_is_written(load: Any) -> None:
    module = load(CACHE)
    before = function_digest(module.remember)

    module.remember("a")

    assert function_digest(module.remember) == before
    other = load(CACHE.replace("= {}", '= {"zero": 0}'))
    assert function_digest(other.remember) != before


def test_the_source_in_an_archive_is_that_of_the_file(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = function_digest(load(CACHE, "archived").remember)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("archived.py", CACHE)
    monkeypatch.syspath_prepend(str(tmp_path / "archive.zip"))
    del sys.modules["archived"]

    shipped = importlib.import_module("archived")

    assert "archive.zip" in str(shipped.__file__)
    assert function_digest(shipped.remember) == before


class Visits(KeyedProcessFunction):
    def process(self, row: Row, context: Context) -> None: ...


class Lookalike:
    def process(self, row: Row, context: Context) -> None: ...


def rows_and_state(rows: Any, state: Any) -> tuple[Any, Any]:
    return rows, state


def a_keyed_stream() -> KeyedStream:
    return Pipeline("auctions").source("bids", Nexmark(1)).key_by("bid_auction")


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (Visits, r"process_keyed\(\) is given the class Visits; give it an instance, Visits\(\)$"),
        (rows_and_state, r"rows_and_state, which is no KeyedProcessFunction; .*process\(\)"),
        (Lookalike, r"is given Lookalike, which is no KeyedProcessFunction"),
        (Lookalike(), r"is given <.*Lookalike object at .*>, which is no KeyedProcessFunction"),
        (None, r"is given None, which is no KeyedProcessFunction"),
    ],
)
def test_what_is_no_instance_of_a_keyed_function_is_refused(function: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        a_keyed_stream().process_keyed("visits", function, result={"user": int})


def test_a_state_that_no_checkpoint_would_keep_is_refused() -> None:
    class Counting(Visits):
        def __init__(self) -> None:
            self.count = ValueState(int)

    said = (
        r"Counting sets the ValueState 'count' on self, .* in the class: count = ValueState\(...\)"
    )
    with pytest.raises(ConfigurationError, match=said):
        a_keyed_stream().process_keyed("visits", Counting(), result={"user": int})


def test_another_name_of_a_state_is_taken() -> None:
    class Counting(Visits):
        count = ValueState(int)

        def __init__(self) -> None:
            self.counted = self.count

    keyed = a_keyed_stream().process_keyed("visits", Counting(), result={"user": int})

    assert [*keyed.pipeline.stages] == ["visits"]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (Visits(), r"function is .*; write process_keyed\(..., Visits\(\), ...\): it sees a row"),
        (Visits, r"a KeyedProcessFunction, Visits, .*process_keyed\(..., Visits\(\), ...\)"),
        (
            "rows_and_state",
            r"process\('visits'\): function is 'rows_and_state' \(str\); use a function",
        ),
    ],
)
def test_what_is_no_function_of_frames_is_refused(function: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        a_keyed_stream().process("visits", function, state={}, result={"user": int})


def test_an_instance_and_a_function_are_taken() -> None:
    stream = a_keyed_stream()

    keyed = stream.process_keyed("keyed", Visits(), result={"user": int})
    framed = stream.process("framed", rows_and_state, state={}, result={"user": int})

    assert [*keyed.pipeline.stages] == [*framed.pipeline.stages] == ["keyed", "framed"]
