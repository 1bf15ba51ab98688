"""Running untrusted programs.

`pool` is what the rest of the package uses. `server` is a plain script that runs in a process of its own and imports only the
standard library and the modules of this folder; all modules but `pool` follow this rule.
"""
