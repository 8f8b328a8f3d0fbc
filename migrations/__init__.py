"""The schema's history: forward-only revisions, each a short Python file that runs the SQL file beside it.

`gateway.db.migrate` is the only way in. All pending revisions run in one transaction under an advisory lock, so
that a killed run leaves nothing behind and any number of processes may start at once.
"""
