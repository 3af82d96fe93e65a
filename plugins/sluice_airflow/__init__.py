"""The Airflow provider: DAGs and operators that delegate every decision to the coordinator.

Importing from here is cheap, because every task imports the DAG file: the bucket's client, Spark
and providers are imported inside the methods that use them.
"""
