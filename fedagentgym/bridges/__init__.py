"""Bridges to other libraries, which use environments of this package or provide environments to it.

Each module serves one library, which an extra installs. The rest of the package imports none of these modules.
"""
