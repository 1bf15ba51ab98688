"""Ways to and from other libraries: our worlds in their trainers and servers, their environments and generators as worlds here.

Each module knows one library, which an extra brings; none of them is imported by the rest of the package.
"""
