"""One of ours, and pipelines that tests make."""

from pipelines.ssh_threats import pipeline as ssh_threats
from tests.chaos.under_fire import on_files, pipeline_at

__all__ = ["ssh_threats"]

at_commit = pipeline_at("commit")
at_restore = pipeline_at("restore")
arrivals = on_files()
