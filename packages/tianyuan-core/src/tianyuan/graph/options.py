"""Say how far a graph is optimised and by which policy its kernels are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import config
from ..errors import AttrError
from ..kernel import FULL, PRECISIONS

HEURISTIC, PROFILE, REPRODUCIBLE = "heuristic", "profile", "reproducible"
POLICIES = (HEURISTIC, PROFILE, REPRODUCIBLE)


@dataclass(frozen=True)
class MemoryLimit:
    """How hard to try to save memory by computing values twice; see ``graph.recompute``.

    Attributes:
        tries: how many distances between kept values are tried.
        enough: bytes of arena within which nothing more needs to be saved.
        least: bytes of the smallest value that is worth dropping.
    """

    tries: int = 10
    enough: int = 0
    least: int = 0


@dataclass(frozen=True)
class Options:
    """What a user may choose about compilation; equal options give equal programs.

    Attributes:
        level: 0 only drops dead code and picks the kernels that eager execution picks, so that
            results are bit-equal; 1 adds the canonical passes; 2 adds fusion and layouts.
        winograd: whether Winograd kernels may serve; ``config.winograd`` unless given.
        policy: ``heuristic`` chooses by estimated cost, ``profile`` by measured time;
            ``reproducible`` leaves out kernels whose result depends on thread count or batch, and
            methods with an error of their own, which costs choose for some batches only; as
            ``config`` says unless given.
        threads: how many threads the program is planned for.
        memory: compute values twice where that saves memory, or None.
        precision: ``bf16`` permits kernels that round float32 operands to bfloat16; they compete
            by cost with all others, and sums stay in float32. ``full`` leaves them out.

    Raises:
        AttrError: where the policy or the precision is none of these.
    """

    level: int = 2
    winograd: bool = field(default_factory=lambda: config.winograd)
    policy: str = field(default_factory=config.policy)
    threads: int = 1
    memory: MemoryLimit | None = None
    precision: str = FULL

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise AttrError(
                f"options: unknown policy, got {self.policy!r}, "
                f"expected one of {', '.join(POLICIES)}"
            )
        if self.precision not in PRECISIONS:
            raise AttrError(
                f"options: unknown precision, got {self.precision!r}, "
                f"expected one of {', '.join(PRECISIONS)}"
            )
