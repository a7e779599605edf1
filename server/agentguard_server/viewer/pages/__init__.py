"""Pages of the viewer: one module per page, each with ``routes()``."""
