"""The local stack: an S3 server, a Spark Connect server and Airflow, as processes on loopback."""
