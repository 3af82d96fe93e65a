"""The Spark driver: sessions, and one Spark job per stage and epoch."""
