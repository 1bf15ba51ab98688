"""Programs that do nothing wrong: each has to end well and print what is expected."""

PROGRAMS: dict[str, tuple[str, str]] = {}
