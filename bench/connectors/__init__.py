"""Benchmarks of each connector against its plain library."""
