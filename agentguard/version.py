"""Version, in a module that can be imported without the rest of the package."""

__version__ = "0.1.0"
