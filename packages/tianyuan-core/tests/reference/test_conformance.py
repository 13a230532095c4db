"""The numpy backend passes the conformance kit like any other."""

from tianyuan.testing.suite import *  # noqa: F403

BACKEND = "numpy"
