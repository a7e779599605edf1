"""The state that a run's tools act on, saved at turn boundaries: bounded, compressed, written behind.

``codec``    a state as bytes and back
``delta``    one state's bytes as what differs from another's
``series``   the snapshots of one run: dense behind its head, sparse further back, bounded in bytes
``cadence``  how often to take one (Young 1974, Daly 2006)
``kept``     snapshots in the store: written behind, and read again after a crash
``keeper``   these together, for an integration that can save and restore
"""
