"""What tests and benchmarks share: servers of their own, a store that counts, small declared jobs.

It imports the product alone: nothing of ``tests``, nothing of ``bench``.
"""
