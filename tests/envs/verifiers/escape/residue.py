"""A program that searches what it can reach for texts of earlier runs, and the runs that leave such texts behind."""

from __future__ import annotations

from fedagentgym.envs.verifiers.code import Call, Checks

SEARCH = r'''
import ctypes, gc, os, re, sys
sys.stdout.write("begin\n")
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
libc.write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
MARK = re.compile(bytes(reversed(b"-KRAM")) + rb"[0-9a-f]{24}")
PAGE = 4096
found, pages = set(), 0
reading, writing = os.pipe()

def copy(address):
    """A page of memory; None where there is none: the kernel refuses instead of ending the program."""
    size = libc.write(writing, address, PAGE)
    return os.read(reading, size) if size > 0 else None

def look(start, end):
    global pages
    before = b""
    for address in range(start & -PAGE, end, PAGE):
        page = copy(address)
        pages += page is not None
        found.update(MARK.findall(before[-64:] + page if page else b""))
        before = page or b""

top = libc.sbrk(0)
objects = [id(one) for one in gc.get_objects()] + [id(b"")]
near = sorted({(one >> 22) for one in objects if abs(one - top) > (1 << 30)})
look(top - HEAP, top)
for region in near:
    look((region - 1) << 22, (region + 2) << 22)
for number in range(3, 256):
    try:
        os.lseek(number, 0, 0)
        found.update(MARK.findall(os.read(number, 1 << 20)))
    except OSError:
        pass
for name in ("/dev/shm", "/tmp", "/run", ".", "/proc/self"):
    try:
        for one in os.listdir(name):
            with open(os.path.join(name, one), "rb") as file:
                found.update(MARK.findall(file.read(1 << 20)))
    except OSError:
        pass
found.update(MARK.findall(repr(dict(os.environ)).encode()))
found.update(MARK.findall(repr(sys.argv).encode()))
sys.stdout.write(f"{pages} pages\n{sorted(found)}\n")
'''
"""Prints how many pages of memory it read and the marks in them. `HEAP` is replaced by the bytes of heap to search."""


def make_search(heap: int) -> str:
    return SEARCH.replace("HEAP", str(heap))


def make_planting_script(mark: str, size: int) -> tuple[str, str]:
    """A program and its input of this size: both contain the mark, and so does what it writes and raises."""
    text = f"{mark} " * max(size // (len(mark) + 1), 1)
    writes = f"print(kept, input())\nsys.stderr.write(kept)\nraise ValueError('{mark}')\n"
    source = f'import sys\nkept = """{text[:40_000]}"""\n{writes}'
    return source, text


def make_planting_checks(mark: str) -> tuple[str, Checks]:
    """A program and its tests, with the mark in arguments, expected values, test code, returned values and errors."""
    source = f"def solve(given):\n    print('{mark}')\n    return [given, '{mark}']\n"
    code = f"def check(candidate):\n    assert candidate('{mark}') == '{mark}', '{mark}'\n"
    return source, Checks("solve", calls=(Call((mark,), [mark, mark]),), code=code, check="check")
