"""What can be said of a declaration before it runs, without Spark: a second, and no row is read."""
