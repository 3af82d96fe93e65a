"""The driver's side of Spark: the session, and one job per stage and epoch."""
