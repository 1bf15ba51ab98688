"""Benchmark suites, submitted results, their verification, and the tables made of them."""

if __name__ != "fedagentgym.leaderboard":
    raise ImportError("the folder `leaderboard` at the root holds results: import fedagentgym.leaderboard instead")
