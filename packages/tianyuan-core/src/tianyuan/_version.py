"""The version of tianyuan-core."""

__version__ = "0.1.0"
