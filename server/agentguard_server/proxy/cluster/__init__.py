"""State that several proxies share through a database: conversations, health hints and effects.

A request uses the database only if it may continue a run of another proxy. If the database is unavailable,
the proxy keeps serving with its own state and counts the failed reads and writes.
"""
