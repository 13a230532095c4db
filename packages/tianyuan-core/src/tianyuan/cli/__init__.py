"""The ``tianyuan`` command."""
