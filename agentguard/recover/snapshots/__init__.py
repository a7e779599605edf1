"""Snapshots of the state that a run's tools change, saved at turn boundaries.

``serializers``  conversion of a state to bytes and back
``delta``        differences between the bytes of two states
``history``      snapshots of one run: dense at its end, sparse further back, bounded in bytes
``store_sink``   snapshots in the store: written in the background, read after a crash
``manager``      snapshot interval (Young 1974, Daly 2006), saving and restoring for an integration
"""
