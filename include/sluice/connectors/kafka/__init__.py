"""Kafka: topics as a source of numbered records, and a topic as a sink with transactions."""
