"""Keyed state as a small LSM tree: immutable Arrow segments, sorted by hash, newest run wins."""
