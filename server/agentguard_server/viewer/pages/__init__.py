"""One module a page; each has ``routes()``, and the application finds it here."""
