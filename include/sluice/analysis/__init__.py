"""The analysis of a declaration without Spark: it takes a second and reads no row."""
