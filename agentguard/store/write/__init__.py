"""Write path of the store."""
