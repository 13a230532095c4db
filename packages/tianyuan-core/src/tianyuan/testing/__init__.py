"""The conformance kit: every backend passes it, and a plugin's test file is one import and a name.

from tianyuan.testing.suite import *

BACKEND = "x86"
"""
