"""Measurements: a load generator for any OpenAI-compatible server, and what each part of Forebay takes.

`python -m bench` runs all of them (`make bench`); tables go to the terminal, rows to `results/*.csv` with the commit
and the machine. Nothing here is a test, and no test asserts a time.
"""
