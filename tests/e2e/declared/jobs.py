"""One of ours, and pipelines that tests make."""

from tests.chaos.under_fire import on_files, pipeline_at

at_commit = pipeline_at("commit")
at_restore = pipeline_at("restore")
arrivals = on_files()
