"""Alembic's entry point. Knows nothing of URLs: `gateway.db.migrate` hands it a connection in a transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
