from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path


@pytest.fixture(scope="module")
def paper():
    """Give a device whose kernels exist on paper only."""
    import graph_tools

    graph_tools.register_paper()
    yield
    graph_tools.unregister_paper()


@pytest.fixture
def brings(paper):
    """Give a function that puts other kernels in place of the paper device's own."""
    import graph_tools

    def bring(*kernels):
        graph_tools.unregister_paper()
        graph_tools.register_paper(*kernels)

    yield bring
    bring()
