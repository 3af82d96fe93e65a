"""Avro's types as columns, in files and in messages."""
