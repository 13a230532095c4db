"""MegEngine's objects that configure a trace, and what they mean here."""

from __future__ import annotations

from ..device import get_device_count
from ..errors import AttrError
from ..graph.options import MemoryLimit


class SublinearMemoryConfig:
    """Ask a trace to compute values twice instead of keeping them, where that saves memory.

    Args:
        thresh_nr_try: how many distances between kept values are tried.
        genetic_nr_iter, genetic_pool_size: rounds and pool of a genetic search; without effect,
            since every plan that is tried is measured exactly.
        lb_memory_mb: megabytes of arena within which nothing more needs to be saved; 0 saves as
            much as can be found.
        num_worker: threads of the search; without effect, it takes no time that would need them.

    Raises:
        AttrError: where a number is negative.

    Example:
        >>> from tianyuan.jit import SublinearMemoryConfig
        >>> SublinearMemoryConfig(thresh_nr_try=5).memory_limit().tries
        5
    """

    def __init__(
        self,
        thresh_nr_try: int = 10,
        genetic_nr_iter: int = 0,
        genetic_pool_size: int = 20,
        lb_memory_mb: int = 0,
        num_worker: int = max(1, get_device_count("cpu") // 2),
    ) -> None:
        self.thresh_nr_try = thresh_nr_try
        self.genetic_nr_iter = genetic_nr_iter
        self.genetic_pool_size = genetic_pool_size
        self.lb_memory_mb = lb_memory_mb
        self.num_worker = num_worker
        _not_negative(self)
        self._limit = MemoryLimit(tries=int(thresh_nr_try), enough=int(lb_memory_mb) << 20)

    def memory_limit(self) -> MemoryLimit:
        """Return what compilation is told.

        Example:
            >>> from tianyuan.jit import SublinearMemoryConfig
            >>> SublinearMemoryConfig(lb_memory_mb=1).memory_limit().enough
            1048576
        """
        return self._limit


class DTRConfig:
    """Ask a trace to keep its memory below a threshold by computing values twice.

    The plan of a program is known before it runs, so what MegEngine decides by counting at run
    time is decided here when the program is compiled.

    Args:
        eviction_threshold: bytes of arena that are enough; the least recomputation that keeps
            within is taken. 0 saves as much as can be found.
        evictee_minimum_size: bytes of the smallest value that is worth dropping.
        recomp_memory_factor, recomp_time_factor: weights of a heuristic that is not needed; plans
            are compared by their exact memory and estimated time.

    Raises:
        AttrError: where a number is negative.

    Example:
        >>> from tianyuan.jit import DTRConfig
        >>> DTRConfig(eviction_threshold=4096).memory_limit().enough
        4096
    """

    def __init__(
        self,
        eviction_threshold: int = 0,
        evictee_minimum_size: int = 1 << 20,
        recomp_memory_factor: float = 1,
        recomp_time_factor: float = 1,
    ) -> None:
        self.eviction_threshold = eviction_threshold
        self.evictee_minimum_size = evictee_minimum_size
        self.recomp_memory_factor = recomp_memory_factor
        self.recomp_time_factor = recomp_time_factor
        _not_negative(self)
        self._limit = MemoryLimit(enough=eviction_threshold, least=evictee_minimum_size)

    def memory_limit(self) -> MemoryLimit:
        """Return what compilation is told.

        Example:
            >>> from tianyuan.jit import DTRConfig
            >>> DTRConfig().memory_limit().least
            1048576
        """
        return self._limit


class GraphOptimizationConfig:
    """MegEngine's switches of its run-time compiler for fused loops.

    Fusing here is part of ``opt_level=2``, and neither switch changes it: transposes are never
    fused into loops (the layout pass places them), and reductions keep kernels of their own.

    Attributes:
        jit_fuse_dimshuffle: whether transposes may be fused; without effect.
        jit_fuse_reduce: whether reductions may be fused; without effect.

    Example:
        >>> from tianyuan.jit import GraphOptimizationConfig
        >>> GraphOptimizationConfig()
        GraphOptimizationConfig(jit_fuse_dimshuffle=False, jit_fuse_reduce=False)
    """

    def __init__(self) -> None:
        self.jit_fuse_dimshuffle = False
        self.jit_fuse_reduce = False

    def __repr__(self) -> str:
        return (
            f"GraphOptimizationConfig(jit_fuse_dimshuffle={self.jit_fuse_dimshuffle}, "
            f"jit_fuse_reduce={self.jit_fuse_reduce})"
        )


def memory_limit(
    sublinear: SublinearMemoryConfig | None, dtr: DTRConfig | None
) -> MemoryLimit | None:
    """Return what a trace with these configurations tells compilation.

    Raises:
        AttrError: where both are given, or something else.
    """
    for name, value, kind in (
        ("sublinear_memory_config", sublinear, SublinearMemoryConfig),
        ("dtr_config", dtr, DTRConfig),
    ):
        if value is not None and not isinstance(value, kind):
            raise AttrError(
                f"trace: {name} is wrong, got {type(value).__name__}, expected {kind.__name__}"
            )
    if sublinear is not None and dtr is not None:
        raise AttrError(
            "trace: got sublinear_memory_config and dtr_config, expected one of them: both say "
            "which values to compute twice"
        )
    chosen = sublinear or dtr
    return chosen.memory_limit() if chosen is not None else None


def _not_negative(config: object) -> None:
    for name, value in vars(config).items():
        if not isinstance(value, (int, float)) or value < 0:
            raise AttrError(
                f"{type(config).__name__}: {name} is wrong, got {value!r}, expected a number >= 0"
            )
