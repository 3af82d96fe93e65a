"""Hosts the coordinator: load facts, step, append to the journal, carry out the commands."""
