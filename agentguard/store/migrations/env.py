"""What alembic runs: the migrations, on the connection and in the transaction it is handed."""

from alembic import context

from agentguard.store.db.tables import PREFIX

# Beside other programs' tables the version needs a name of its own. SQLite can roll tables back: alembic
# does not expect that, because Python's sqlite3 does not do it unless told to (agentguard.store.db.engine).
context.configure(
    connection=context.config.attributes["connection"],
    version_table=f"{PREFIX}version",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
