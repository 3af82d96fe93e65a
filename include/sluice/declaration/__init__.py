"""Declarations of pipelines: streams, operations on them, and the schedule of checkpoints."""
