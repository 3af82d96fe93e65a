"""Connectors: replayable sources addressed by offset, and two-phase sinks."""
