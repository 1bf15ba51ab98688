"""Running programs that nobody trusts.

`pool` is what the rest of the package uses. `server`, `confine` and `plain` also run inside the sandboxed processes, as
plain scripts: they import the standard library only.
"""
