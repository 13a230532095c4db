"""Build the stranger's C extension against core's header."""

from setuptools import Extension, setup
from tianyuan import get_include

setup(
    ext_modules=[
        Extension(
            "tianyuan_stranger._kernels",
            sources=["src/tianyuan_stranger/_kernels.c"],
            include_dirs=[get_include()],
        )
    ]
)
