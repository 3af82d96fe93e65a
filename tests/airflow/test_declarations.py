"""A broken declaration leaves the others alone, and is an import error of a separate file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.declaration.project import load_declarations, load_pipeline, load_pipelines
from sluice.errors import ConfigurationError
from sluice_airflow import dags as dag_files
from sluice_airflow.compat import AirflowFailException
from sluice_airflow.dags import build_each, load_watched
from sluice_airflow.watchdog import WatchOperator
from tests.airflow.acts import a_context
from tests.airflow.conftest import REPOSITORY, run_python
from tests.airflow.stand_in import a_pipeline

MODULE = """
from sluice import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Nexmark

pipeline = Pipeline("{uid}")
parsed = pipeline.source("events", Nexmark(10)).transform("parse", lambda rows: rows)
counted = parsed.key_by("auction").aggregate("count_bids", n=agg.count())
counted.key_by("n").top_n("best", 3, by="n", unique="auction").sink(
    "results", FilesTable(upsert_key=("n", "rank"))
)
"""
NO_UID = MODULE.format(uid="no_uid").replace('"count_bids", ', "")

Declare = Callable[..., Path]


@pytest.fixture(name="declare")
def _declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Declare]:
    """Writes a package ``pipelines``, which is the project's, as the environment says."""
    package = tmp_path / "declared" / "pipelines"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()

    def declare(**modules: str) -> Path:
        for name, text in modules.items():
            (package / f"{name}.py").write_text(text)
        return package.parent

    before = {name: module for name, module in sys.modules.items() if is_ours(name)}
    for name in before:
        del sys.modules[name]
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("sluice.declaration.project._imported", {})
    monkeypatch.setenv("SLUICE_PIPELINES", str(package))
    yield declare
    for name in [name for name in sys.modules if is_ours(name)]:
        del sys.modules[name]
    sys.modules.update(before)


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "pipelines"


BROKEN: dict[str, tuple[str, str]] = {
    "a syntax error": ("pipeline = (", "line 1: '(' was never closed"),
    "an import that fails": (
        "\nimport no_such_module", "line 2: ModuleNotFoundError: No module named 'no_such_module'"
    ),
    "a forgotten uid": (
        NO_UID,
        'line 9: aggregate needs a uid first: .aggregate("my_aggregate", ...); state is recover',
    ),
    "an exit": ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_broken_module_takes_no_other_one_away(declare: Declare, mistake: str) -> None:
    text, said = BROKEN[mistake]
    declare(a=MODULE.format(uid="a"), broken=text, z=MODULE.format(uid="z"))

    declarations = load_declarations()

    assert list(declarations.pipelines) == ["a", "z"]
    assert list(declarations.problems) == ["pipelines/broken.py"]
    assert declarations.problems["pipelines/broken.py"].startswith(said)


def test_of_two_modules_that_declare_one_uid_neither_counts(declare: Declare) -> None:
    """The state could be that of either."""
    declare(a=MODULE.format(uid="same"), b=MODULE.format(uid="same"), c=MODULE.format(uid="c"))

    declarations = load_declarations()

    problem = (
        "pipeline 'same' is declared in pipelines/a.py and in pipelines/b.py; give one of them "
        "another uid"
    )
    assert list(declarations.pipelines) == ["c"]
    assert declarations.problems == {"pipelines/a.py": problem, "pipelines/b.py": problem}


def test_a_pipeline_that_another_module_imports_is_declared_once(declare: Declare) -> None:
    declare(a=MODULE.format(uid="a"), b="from pipelines.a import pipeline")

    declarations = load_declarations()

    assert (list(declarations.pipelines), declarations.problems) == (["a"], {})


def test_a_package_that_cannot_be_imported_is_a_problem_of_its_own(declare: Declare) -> None:
    declare(__init__="raise RuntimeError('no')", a=MODULE.format(uid="a"))

    declarations = load_declarations()

    assert declarations.pipelines == {}
    assert declarations.problems == {"pipelines/__init__.py": "line 1: RuntimeError: no"}


def test_a_command_on_a_healthy_pipeline_does_not_mind(
    declare: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    declare(a=MODULE.format(uid="a"), broken="import no_such_module")

    assert load_pipeline("a").uid == "a"
    assert list(load_pipelines()) == ["a"]
    assert "module=pipelines/broken.py: line 1: ModuleNotFoundError" in caplog.text
    with pytest.raises(ConfigurationError, match=r"no pipeline 'b'; declared are a; pipelines/bro"):
        load_pipeline("b")


def test_a_pipeline_that_cannot_be_loaded_is_told_alone(declare: Declare) -> None:
    declare(
        a="from sluice.declaration.pipeline import Pipeline\np = Pipeline('a')\n",
        b="x = 1 / 0\n",
        c="x =",
    )

    with pytest.raises(ConfigurationError) as error:
        load_pipeline("b")

    assert str(error.value) == (
        "pipeline 'b' cannot be loaded: pipelines/b.py, line 1: ZeroDivisionError: division by zero"
    )


def test_a_pipeline_whose_dags_cannot_be_built_takes_no_other_one_away() -> None:
    taken = a_pipeline("taken")
    taken.source("more", taken.sources["events"].spec).transform("commit", lambda rows: rows)
    pipelines = {p.uid: p for p in (a_pipeline("demo"), a_pipeline("demo__restore"), taken)}

    dags, problems = build_each(pipelines)

    assert {dag_id.partition("__")[0] for dag_id in dags} == {"demo"}
    assert list(problems) == ["pipeline demo__restore", "pipeline taken"]
    assert "two pipelines make a DAG 'demo__restore'" in problems["pipeline demo__restore"]
    assert "'commit' of pipeline 'taken' is called like a task" in problems["pipeline taken"]


def test_the_watchdog_watches_the_others_and_names_the_broken(
    declare: Declare, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(a=MODULE.format(uid="a"), broken="import no_such_module", z=MODULE.format(uid="z"))
    watched: list[str] = []

    def watch(job: object, **_: object) -> object:
        from sluice.coordinator.failure import Watched

        watched.append(job.pipeline.uid)  # type: ignore[attr-defined]
        return Watched(())

    monkeypatch.setattr("sluice.coordinator.failure.watch", watch)

    with pytest.raises(AirflowFailException, match=r"cannot watch pipelines/broken.py: line 1: Mo"):
        WatchOperator(task_id="watch", load=load_watched).execute(a_context())
    assert watched == ["a", "z"]


IMPORT = """
import sys
from pathlib import Path
from tests.airflow.releases import a_bag

folder = Path(sys.argv[1])
bag = a_bag(folder, folder)
for path, error in sorted(bag.import_errors.items()):
    print("ERROR", Path(path).name, error.strip().replace(chr(10), " | "))
print("DAGS", *sorted((dag.dag_id for dag in bag.dags.values())))
print("FILES", *sorted({Path(dag.fileloc).name for dag in bag.dags.values()}))
"""


def python(script: str, folder: Path, argument: Path) -> str:
    """The output of *script* in a process of its own, with the pipelines of *folder*."""
    env = {
        "SLUICE_PIPELINES": str(folder / "pipelines"),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
    }
    return run_python(script, argument, **env)


def imported(folder: Path) -> dict[str, str]:
    """What Airflow finds in dags/ with the pipelines of *folder*: line by line, by first word."""
    run = python(IMPORT, folder, REPOSITORY / "dags")
    lines = [line.split(" ", 1) for line in run.splitlines()]
    return {line[0]: line[1] for line in lines if line[0] in ("ERROR", "DAGS", "FILES")}


def test_airflow_shows_the_dags_of_the_healthy_and_an_import_error_for_the_others(
    declare: Declare,
) -> None:
    half = MODULE.format(uid="half").replace('"best"', '"commit"')
    folder = declare(a=MODULE.format(uid="a"), broken="import no_such_module", half=half)

    found = imported(folder)

    dags = found["DAGS"].split()
    assert {"a", "a__savepoint", "a__restore", "sluice__watchdog"} <= {*dags}
    assert not [dag_id for dag_id in dags if dag_id.startswith("half")]
    assert found["ERROR"].startswith("declarations.py ")
    assert "pipelines/broken.py: line 1: ModuleNotFoundError: No module na" in found["ERROR"]
    assert "pipeline half: stage 'commit' of pipeline 'half' is called like" in found["ERROR"]


def test_without_a_problem_there_is_no_error_and_every_dag_has_one_file(declare: Declare) -> None:
    found = imported(declare(a=MODULE.format(uid="a")))

    assert "ERROR" not in found
    assert found["FILES"] == "sluice_dags.py"


PARSE = """
import json, sys, time
import airflow.sdk, airflow.triggers.base
from tests.airflow.releases import DagSerialization
from runpy import run_path

begin = time.process_time()
dags = [v for v in run_path(sys.argv[1]).values() if isinstance(v, airflow.sdk.DAG)]
parsed = time.process_time()
for dag in dags:
    json.dumps(DagSerialization.to_dict(dag))
print(len(dags), parsed - begin, time.process_time() - parsed)
"""


def test_a_hundred_pipelines_are_parsed_within_thirty_seconds(
    declare: Declare, record_property: Callable[[str, object], None]
) -> None:
    """In seconds of CPU, with the serialization that Airflow's DAG processor does behind it."""
    folder = declare(**{f"p{n:03}": MODULE.format(uid=f"p{n:03}") for n in range(100)})

    run = python(PARSE, folder, REPOSITORY / "dags" / "sluice_dags.py")

    dags, parsed_s, serialized_s = run.splitlines()[-1].split()
    record_property("parsed_s", parsed_s)
    record_property("serialized_s", serialized_s)
    assert int(dags) >= 300
    assert float(parsed_s) + float(serialized_s) < 30


@pytest.mark.parametrize("dag_id", ["one", "one__restore"])
def test_a_task_builds_the_dags_of_its_own_pipeline_alone(
    monkeypatch: pytest.MonkeyPatch, dag_id: str
) -> None:
    # Not by Airflow's own context manager, which does not unset what it has set.
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)

    dags, problems = build_each({uid: a_pipeline(uid) for uid in ("one", "one_more", "two")})

    assert list(dags) == ["one", "one__savepoint", "one__restore", "one__cancel"]
    assert problems == {}


OURS = str(REPOSITORY / "include" / "pipelines")


def pipelines_with_dags() -> set[str]:
    return {uid.partition("__")[0] for uid in dag_files.dags(OURS)}


@pytest.mark.usefixtures("root")
def test_only_the_selected_pipelines_are_dags_and_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_DAGS", "auctions nexmark_q4")

    assert pipelines_with_dags() == {"auctions", "nexmark_q4", "sluice"}
    assert sorted(load_watched()) == ["auctions", "nexmark_q4"]
    dag_files.require_sound_pipelines(OURS)


def test_of_the_examples_the_nexmark_queries_are_no_dags_and_can_be_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLUICE_DAGS", raising=False)
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    monkeypatch.chdir(REPOSITORY / "dags")

    assert sorted(load_watched()) == ["auctions", "ssh_threats"]
    assert load_pipeline("nexmark_q4").uid == "nexmark_q4"


@pytest.mark.usefixtures("root")
def test_a_pattern_that_fits_no_pipeline_is_an_import_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_DAGS", "auctions ssh_treats")

    with pytest.raises(ConfigurationError) as refused:
        dag_files.require_sound_pipelines(OURS)

    assert str(refused.value).startswith(
        "'ssh_treats' in dags, or in SLUICE_DAGS, fits no pipeline; declared are auctions, "
        "auctions_submitted, nexmark_"
    )
