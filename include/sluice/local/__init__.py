"""Local runs: one process runs a job, with the same coordinator and stages as Airflow's DAGs."""
