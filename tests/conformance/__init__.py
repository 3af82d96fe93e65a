"""Flink's rules as cases, and the adapter that runs any such file through the core."""
