"""Bridges to other libraries: our environments in their trainers and servers, their environments and generators here.

Each module is about one library, which an extra installs; none of them is imported by the rest of the package.
"""
