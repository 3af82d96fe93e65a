"""The Spark driver: sessions, and one Spark job per epoch and chain of stages."""
