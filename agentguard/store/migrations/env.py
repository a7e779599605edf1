"""Alembic environment: runs the migrations on the connection and in the transaction of the caller."""

from alembic import context

from agentguard.store.db.tables import PREFIX

# The version table has the prefix because other programs may use the same database. Alembic assumes that
# SQLite cannot roll back DDL, since Python's sqlite3 begins no transaction for it. agentguard.store.db.engine
# begins a transaction.
context.configure(
    connection=context.config.attributes["connection"],
    version_table=f"{PREFIX}version",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
