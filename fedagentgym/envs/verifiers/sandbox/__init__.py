"""Running untrusted programs.

The rest of the package runs programs through `pool`. `server` is a plain script that runs in a process of its own. It, and
all other modules except `pool`, import only the standard library and modules of this folder.
"""
