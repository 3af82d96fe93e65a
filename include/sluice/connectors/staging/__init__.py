"""Staging: files of rows that no reader sees until a commit publishes them."""
