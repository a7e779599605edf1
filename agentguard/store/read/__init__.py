"""Read path of the store."""
