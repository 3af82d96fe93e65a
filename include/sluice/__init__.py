"""Consistent checkpoints, savepoints and restore for chains of Spark stages on Airflow."""
