"""Say how far a graph is optimised and by which policy its kernels are chosen."""

from __future__ import annotations

from dataclasses import dataclass

HEURISTIC, PROFILE, REPRODUCIBLE = "heuristic", "profile", "reproducible"


@dataclass(frozen=True)
class Options:
    """What a user may choose about compilation; equal options give equal programs.

    Attributes:
        level: 0 only drops dead code and picks the kernels that eager execution picks, so that
            results are bit-equal; 1 adds the canonical passes; 2 adds fusion and layouts.
        winograd: whether Winograd kernels may serve.
        policy: ``heuristic`` chooses by estimated cost; ``reproducible`` leaves out kernels whose
            result depends on thread count or batch; ``profile`` by measurement, where available.
        threads: how many threads the program is planned for.
    """

    level: int = 2
    winograd: bool = True
    policy: str = HEURISTIC
    threads: int = 1
