"""Benchmarks: ``make bench``. Each is a contest of ours against a floor or a peer, in the same run.

A module ``bench_*`` registers its contests with ``harness.benchmark``; ``__main__`` finds and runs them.
Wall times are shown, never asserted: what counts is the ratio.
"""
