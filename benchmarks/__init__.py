"""Measurements and tables of this repository: `python -m benchmarks NAME`. They are not part of the installed package.

A benchmark is a function `run(quick)` that returns its figures. It writes its files below the root of the repository.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
