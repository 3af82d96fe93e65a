"""Airflow's view of sluice: it translates and delegates; every decision is the coordinator's.

Importing from here is cheap, because every task imports the DAG file: what needs the bucket, Spark
or a provider is imported inside the method that uses it.
"""
