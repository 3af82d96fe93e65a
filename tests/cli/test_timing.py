"""``sluice pause``, ``resume`` and ``checkpoints config``."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harness.jobs import a_job, a_pipeline
from sluice.coordinator.requests import NewTimes, retime
from sluice.job.job import Job
from sluice.sources import Nexmark
from tests.cli.conftest import Sluice


def test_a_job_is_paused_and_resumed(job: Job, sluice: Sluice) -> None:
    paused = sluice("pause", "auctions").out
    shown = sluice("checkpoints", "config", "auctions").out
    assert job.state().timing.is_paused
    resumed = sluice("resume", "auctions", "--json").json

    assert paused == "checkpointing of auctions is paused\n"
    assert shown.startswith("auctions is RUNNING, paused\nchanged last by ")
    assert (resumed["paused"], job.state().timing.is_paused) == (False, False)


def test_options_are_shown_as_declared_in_force_and_by_default(job: Job, sluice: Sluice) -> None:
    before = sluice("checkpoints", "config", "auctions", "--json").json
    sluice("checkpoints", "config", "auctions", "--timeout", "5m", "--tolerable", 3)
    changed = sluice("checkpoints", "config", "auctions", "--interval", "90s", "--json").json
    lines = sluice("checkpoints", "config", "auctions").out.splitlines()
    sluice("checkpoints", "config", "auctions", "--reset")
    reset = sluice("checkpoints", "config", "auctions", "--json").json

    def of(told: dict[str, list[dict[str, object]]], name: str) -> tuple[object, ...]:
        (one,) = [one for one in told["settings"] if one["name"] == name]
        return tuple(one[key] for key in ("declared", "in_force", "default"))

    assert of(before, "timeout") == (600_000, 600_000, 600_000)
    assert of(changed, "timeout") == (600_000, 300_000, 600_000)
    assert of(changed, "interval") == (60_000, 90_000, 60_000)
    assert of(changed, "tolerable_failed_checkpoints") == (0, 3, 0)
    assert (changed["timeout"], changed["tolerable_failed_checkpoints"]) == (300_000, 3)
    assert next(line.split() for line in lines if line.startswith("timeout")) == [
        *("timeout", "10", "min", "5", "min", "10", "min")
    ]
    assert max(map(len, lines[2:])) <= 80
    assert before["settings"] == reset["settings"]


def test_what_nothing_reads_is_named_by_a_check(
    job: Job, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = a_pipeline()
    more = changed.source("more", Nexmark(10))
    changed.source("towns", Nexmark(10), table=True)
    more.key_by("bidder").deduplicate("idle", by="price")
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": changed}.__getitem__)

    said = sluice("check", "auctions").err

    assert "nothing reads source 'towns'\n" in said
    assert "nothing reads stage 'idle'\n" in said
    assert said.count("nothing reads") == 2


def test_a_job_that_was_never_submitted_would_run_as_declared(new_job: Job, sluice: Sluice) -> None:
    shown = sluice("checkpoints", "config", "auctions", "--root", new_job.store.root, "--json").json

    assert not shown["paused"]
    assert all(one["declared"] == one["in_force"] for one in shown["settings"])
    assert "was never submitted" in sluice("pause", "auctions", "--root", a_job().store.root).error


def test_a_period_that_is_not_understood_changes_nothing(job: Job, sluice: Sluice) -> None:
    retime(job, NewTimes(timeout=timedelta(minutes=5)), by="ada")
    before, command = job.state(), ("checkpoints", "config", "auctions", "--timeout")

    assert "write 90s, 30m" in sluice(*command, "soon").error
    assert "timeout is" in sluice(*command, "0").error
    assert job.state() == before


def test_a_changed_option_is_named_until_a_restore_takes_it(
    job: Job, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = a_pipeline(num_retained=9, min_pause=timedelta(seconds=90))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": changed}.__getitem__)
    retime(job, NewTimes(min_pause=timedelta(seconds=5)), by="ada")
    config = ("checkpoints", "config", "auctions")

    shown = sluice(*config).out
    checked = sluice("check", "auctions").err
    awaiting = [one for one in sluice(*config, "--json").json["settings"] if one["awaits_restore"]]
    planned = sluice("restore", "auctions", "--dry-run").out
    still = job.state().configuration.num_retained
    restored = sluice("restore", "auctions").out
    after = sluice(*config).out

    said = "num_retained: declared 9, in force 3 until a restore"
    assert shown.splitlines()[-2:] == [
        said,
        "min_pause: declared 90 s, in force 5 s until --reset",
    ]
    assert f"warning: auctions: {said}\n" in checked
    assert [one["name"] for one in awaiting] == ["num_retained"]
    assert "num_retained 9, before 3\n" in planned
    assert "num_retained 9, before 3\n" in restored
    assert (still, job.state().configuration.num_retained) == (3, 9)
    assert "until a restore" not in after
    assert after.splitlines()[-1] == "min_pause: declared 90 s, in force 5 s until --reset"
