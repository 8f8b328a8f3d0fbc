"""One revision a file; `sql.run` executes the SQL file of the same name."""
