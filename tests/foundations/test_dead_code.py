"""Nothing in the package is there for its tests alone: vulture finds what no code, example or page uses by name."""

from __future__ import annotations

import re
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).resolve().parents[2]
DECORATORS = ["@app.*", "@*.command", "@*_validator*", "@*_serializer*", "@*.register*", "@overload"]
"""Decorators of functions that the decorator's library calls."""
TARGET = re.compile(r'[\w.}]:(\w+)"')
"""`"module:name"` is how registries and commands name what they import when it is first used."""
CALLED_BY_A_LIBRARY = {
    *("command_class", "get_help_option_names"),  # click
    *("text_factory",),  # sqlite3
    *("get_seq_length", "layer_idx"),  # transformers' caches
    *("pre_tokenizer", "normalizer", "encode_special_tokens"),  # tokenizers
    *("on_broken_pipe",),  # rich
    *("on_step_begin", "on_step_end", "response_schema", "parse_response"),  # transformers' and TRL's trainers
    *("reduction",),  # TRL's loss
    *("wrong_answer", "shotgun_answers", "equivalent_forms"),  # falsepass's probes
    *("num_partitions",),  # flwr-datasets
    *("repack_head",),  # vLLM's workers
    *("SUPPORTS_CONCURRENT_SESSIONS", "timeout_s", "get_metadata", "list_splits", "list_tasks"),  # OpenEnv
    *("is_np_flattenable", "probability", "to_jsonable", "from_jsonable", "observation_space"),  # gymnasium
    *("memo",),  # copy.deepcopy
    *("should_exit",),  # uvicorn
    *("kwargs",),  # callers give them
    *("closure",),  # torch.optim
    *("tempdir",),  # tempfile
    *("create_system", "linkname", "pax_headers"),  # zipfile and tarfile
    *("fd",),  # os.fsync
    *("path_stats",),  # importlib's, of a loader
    *("readable", "http_open", "https_open", "http_request", "https_request"),  # io and urllib.request
    *("format_commands", "resolve_command", "type_cast_value"),  # click
    *("SEM_VALUE_MAX",),  # multiprocessing
    *("data_source",),  # verl
    *("list_clients",),  # Flower, by its decorator
}
ATTRIBUTE = re.compile(r"\.(\w+)")
"""Attributes that a page's template reads."""
NAMED_ON_A_PAGE = re.compile(r"```.*?```|`[^`\n]+`|^::: \S+$", re.DOTALL | re.MULTILINE)
"""Code in documentation, and the entries of the Python reference, which `test_surface.py` compares with every `__all__`."""
RUN_IN_A_PROCESS = {"print_answer", "time_construction", "time_build", "time_searches"}
"""Called by text, so that what is timed has a process of its own (benchmarks/webshop.py)."""
READ_AS_A_WHOLE = {
    *(
        "prompt_tokens",
        "uncounted",
        "config_digests",
        "format_broken",
    ),  # dataclasses that become JSON
    *(
        "secret_suite",
        "disclosed_salt",
        "disclosed_seed",
        "hardware",
        "smallest_difference",
    ),  # definitions that become JSON
}


def test_everything_is_used() -> None:
    finder = Vulture(ignore_decorators=DECORATORS)
    finder.scavenge([str(ROOT / part) for part in ("fedagentgym", "benchmarks", "examples")])
    packages = (ROOT / "fedagentgym", ROOT / "benchmarks")
    imported = {
        name
        for package in packages
        for file in package.rglob("*.py")
        for name in TARGET.findall(file.read_text("utf-8"))
    }
    templates = (ROOT / "fedagentgym" / "pages" / "templates").glob("*.html")
    laid_out = {name for file in templates for name in ATTRIBUTE.findall(file.read_text("utf-8"))}
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    code = [part for page in pages for part in NAMED_ON_A_PAGE.findall(page.read_text("utf-8"))]
    documented = {name for part in code for name in re.findall(r"\w+", part)}
    known = documented | imported | laid_out | CALLED_BY_A_LIBRARY | READ_AS_A_WHOLE | RUN_IN_A_PROCESS
    unused = [
        f"{Path(item.filename).relative_to(ROOT)}:{item.first_lineno}: {item.name}"
        for item in finder.get_unused_code(min_confidence=60)
        if any(Path(item.filename).is_relative_to(package) for package in packages)
        and item.name not in known
        and not item.name.startswith("__")
    ]
    assert unused == []
