"""Running programs that nobody trusts.

`pool` is what the rest of the package uses. `server` is a plain script that runs in a process of its own and imports
nothing but the standard library and the modules of this folder; all of them but `pool` keep to that.
"""
