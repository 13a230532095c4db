"""Decide under which conditions examples in docstrings run: seeded, on the numpy backend, apart."""

from __future__ import annotations

import doctest
import os
import pkgutil
import random
import tempfile
from importlib import import_module
from types import ModuleType

import numpy as np

import tianyuan

__all__ = ["documented", "modules_of", "run_examples"]

_PRINTED = {
    "precision": 8, "threshold": 1000, "edgeitems": 3, "linewidth": 75, "suppress": False,
    "nanstr": "nan", "infstr": "inf", "sign": "-", "floatmode": "maxprec",
}  # fmt: skip


def modules_of(package: str) -> list[str]:
    """List a package and all modules below it by their dotted names.

    >>> modules_of("tianyuan.testing")[:2]
    ['tianyuan.testing', 'tianyuan.testing.cases']
    """
    path = import_module(package).__path__
    return [package, *sorted(m.name for m in pkgutil.walk_packages(path, f"{package}."))]


def documented(module: ModuleType) -> set[str]:
    """Return the dotted names of all that is defined in a module and shows an example.

    >>> from tianyuan.testing import examples
    >>> sorted(documented(examples))[0]
    'tianyuan.testing.examples.documented'
    """
    return {test.name for test in _tests(module)}


def run_examples(module: ModuleType) -> list[str]:
    """Run a module's examples and return a report for each that gives something else.

    Each docstring runs on its own, with the module's names at hand, in an empty folder, with
    seeded generators, numpy's default way of printing and kernels of the numpy backend only.

    >>> from tianyuan.functional import elemwise
    >>> run_examples(elemwise)
    []
    """
    return [report for test in _tests(module) if (report := _run(test))]


def _run(test: doctest.DocTest) -> str:
    """Return what went wrong in an example, empty where nothing did."""
    tianyuan.random.seed(0)
    np.random.seed(0)
    random.seed(0)
    said: list[str] = []
    here = os.getcwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        np.printoptions(**_PRINTED),  # type: ignore[arg-type]
        tianyuan.use_backend("numpy"),
    ):
        os.chdir(folder)
        try:
            failed = doctest.DocTestRunner(verbose=False).run(test, out=said.append).failed
        finally:
            os.chdir(here)
    return "".join(said) if failed else ""


def _tests(module: ModuleType) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__)
    return [test for test in found if test.examples]
