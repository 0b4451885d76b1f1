"""Alembic runs the migrations through this file, in the transaction that `migrate.prepare` has begun."""

from alembic import context

from lerobot_coda.memory.migrate import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
