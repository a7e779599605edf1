"""The version, where every room can import it without importing the package's whole surface."""

__version__ = "0.1.0"
