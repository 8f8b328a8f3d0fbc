"""Benchmarks: a load generator for any OpenAI-compatible server, and measurements of each part of Forebay.

`python -m bench` runs all of them (`make bench`); tables go to the terminal, rows to `results/*.csv` with the commit
and the machine. Nothing here is a test, and no test asserts a time.
"""
