"""Hold every kernel of this backend against the references."""

from tianyuan.testing.suite import *  # noqa: F403

BACKEND = "x86"
