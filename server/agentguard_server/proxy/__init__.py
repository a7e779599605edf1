"""The proxy: model endpoints behind one address, kept up, and the runs that go through it guarded."""
