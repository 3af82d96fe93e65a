"""The machine-local stack: S3 server, Spark Connect server and Airflow, processes on loopback."""
