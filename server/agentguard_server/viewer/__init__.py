"""The viewer: runs, what went wrong in them, and what was done about it, in a browser."""
