"""Features of the processor, read from what Linux lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.base import process


@pytest.mark.parametrize(
    ("listed", "present", "reason"),
    [
        ("flags\t\t: fpu sse avx2 avx512f avx512_bf16 amx_tile\nflags\t\t: fpu", True, "has avx512_bf16"),
        ("flags : amx_bf16 avx512_bf16", True, "amx_bf16 and avx512_bf16"),
        ("model name : avx512_bf16\nflags : fpu avx2 not_avx512_bf16", False, "neither amx_bf16 nor avx512_bf16"),
        ("Features : fp asimd", False, "neither"),
        ("nothing of the kind", False, "unknown"),
    ],
)
def test_bfloat16_is_what_the_system_lists(
    listed: str, present: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(listed, "utf-8")
    monkeypatch.setattr(process, "_CPU_FILE", tmp_path / "cpuinfo")
    found = process.check_bfloat16()
    assert found.present is present and reason in found.reason


def test_a_system_that_lists_nothing_is_taken_to_have_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_CPU_FILE", Path("/there/is/no/such/file"))
    assert not process.check_bfloat16().present
