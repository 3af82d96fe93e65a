"""The REST API inside of Airflow: Flink's checkpoint resources, and what Flink has none of."""
