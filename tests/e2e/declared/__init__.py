"""What Airflow runs in tests/e2e/test_sample.py: the main job, and some that are struck."""
