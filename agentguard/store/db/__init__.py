"""Engine, tables and rows of the store."""
