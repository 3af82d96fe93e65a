"""Declared pipelines, one file each: found by the DAG factory and by the CLI."""
