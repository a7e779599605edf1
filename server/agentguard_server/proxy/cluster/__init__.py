"""What several proxies know together, over one database: conversations, hints, the ledger of effects.

The database is never on the way of a request that does not need it, and a proxy without it keeps serving: it
knows only what it has seen itself then, and counts what it could not tell.
"""
