"""Kept learning curves: what is written is read again, and other files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kept_curves import KeptCurve, load_curves, save_curves
from fedagentgym.base.errors import DataError


def test_the_points_of_all_seeds_are_kept(tmp_path: Path) -> None:
    save_curves("mine", {"one": [[(0, 0.25), (4, 0.5)], [(0, 0.5), (8, 0.75)]]}, tmp_path)
    assert load_curves("mine", tmp_path) == {"one": KeptCurve((0.0, 6.0), ((0.25, 0.5), (0.5, 0.75)))}
    assert load_curves("other", tmp_path) is None


@pytest.mark.parametrize("text", ["[]", '{"one": 3}', '{"one": {"x": [0]}}', '{"one": {"x": ["a"], "success": [[1]]}}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(DataError, match="not curves of a benchmark"):
        load_curves("mine", tmp_path)
