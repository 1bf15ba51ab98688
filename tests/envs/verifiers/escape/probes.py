"""Attempts to get out of the sandbox. Each is a few lines that end without an error only if the attempt succeeds.

`held_by` names the protections of which any one has to stop it; where all of them are down, the attempt is not evaluated.
The words VICTIM, FILE, SECRET, FOLDER, SOCKET and PORT stand for things outside that belong to the same user.
"""
# ruff: noqa: E501

from __future__ import annotations

from typing import NamedTuple

CALLS, ACCESS, FILES = "system calls", "file access", "private files"
USER, USERS, PROCESSES, NETWORK, RIGHTS = (
    *("other user", "user namespace", "process namespace"),
    *("network namespace", "no capabilities"),
)

START = """
import ctypes, errno, fcntl, os, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *given):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(one) if isinstance(one, int) else one for one in given])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def raw(path):
    return os.fsencode(path)
"""


class Probe(NamedTuple):
    """One attempt."""

    area: str
    name: str
    body: str
    held_by: tuple[str, ...]


def _make(area: str, held_by: tuple[str, ...], bodies: dict[str, str]) -> list[Probe]:
    return [Probe(area, name, body, held_by) for name, body in bodies.items()]


PROBES: list[Probe] = [
    *_make(
        "process",
        (CALLS,),
        {
            "fork": "if libc.fork() == 0: os._exit(0)\nos.wait()",
            "fork by its number": "if call(57) == 0: os._exit(0)",
            "clone without a thread": "if call(56, 17, 0, 0, 0, 0) == 0: os._exit(0)",
            "clone into a user namespace": "if call(56, 0x10000011, 0, 0, 0, 0) == 0: os._exit(0)",
            "clone3": "if call(435, struct.pack('<11Q', 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 64) == 0: os._exit(0)",
            "unshare a user namespace": "call(272, 0x10000000)",
            "unshare files": "call(272, 0x400)",
            "leave the group": "call(112) if os.getsid(0) != os.getpid() else call(109, 0, 0)",
            "own signal queue": "call(129, os.getpid(), 10, bytes(128))",
            "seccomp again": "call(317, 1, 0, 0)",
            "die without the parent": "call(157, 1, 0, 0, 0, 0)",
            "personality": "call(135, 0x0040000)",
            "a subreaper": "call(157, 36, 1, 0, 0, 0)",
        },
    ),
    *_make(
        "process",
        (CALLS, ACCESS, FILES),
        {
            "exec a shell": "argv = (ctypes.c_char_p * 4)(b'sh', b'-c', b'echo ESCAPED', None)\n"
            "libc.execve(b'/bin/sh', argv, None)\nraise OSError",
            "exec the interpreter": "argv = (ctypes.c_char_p * 4)(b'p', b'-c', b'print(\"ESCAPED\")', None)\n"
            "libc.execve(raw(sys.executable), argv, None)\nraise OSError",
        },
    ),
    *_make(
        "process",
        (CALLS, PROCESSES, ACCESS, USER),
        {
            "signal 0 to another": "call(62, VICTIM, 0)",
            "end another": "call(62, VICTIM, 15)",
            "end another's thread": "call(234, VICTIM, VICTIM, 15)",
            "end another by tkill": "call(200, VICTIM, 15)",
            "queue a signal for another": "call(129, VICTIM, 15, struct.pack('<iii', 15, 0, -1) + bytes(116))",
            "signal the parent": "assert os.getppid() > 1\ncall(62, os.getppid(), 0)",
            "signal every process": "call(62, -1, 0)",
            "attach to another": "call(101, 16, VICTIM, 0, 0)",
            "seize another": "call(101, 0x4206, VICTIM, 0, 0)",
            "SIGIO by FIOSETOWN": "a, b = socket.socketpair()\nfcntl.ioctl(a, 0x8901, struct.pack('i', VICTIM))\n"
            "fcntl.ioctl(a, 0x5452, struct.pack('i', 1))\nb.send(b'x')",
            "SIGIO by SIOCSPGRP": "a, b = socket.socketpair()\nfcntl.ioctl(a, 0x8902, struct.pack('i', VICTIM))",
            "SIGKILL by F_SETSIG": "a, b = os.pipe()\nfcntl.fcntl(a, 8, VICTIM)\nfcntl.fcntl(a, 10, 9)\n"
            "fcntl.fcntl(a, 4, 0x2000)\nos.write(b, b'x')",
            "F_SETOWN_EX": "a, b = os.pipe()\nfcntl.fcntl(a, 15, struct.pack('ii', 1, VICTIM))",
        },
    ),
    *_make(
        "process",
        (CALLS, PROCESSES),
        {
            "a descriptor of another": "call(434, VICTIM, 0)",
            "affinity of another": "call(204, VICTIM, 128, ctypes.create_string_buffer(128))",
            "session of another": "call(124, VICTIM)",
            "group of another": "call(121, VICTIM)",
            "limits of another": "call(302, VICTIM, 7, 0, ctypes.create_string_buffer(16))",
            "memory of another": "held = ctypes.create_string_buffer(8)\n"
            "vector = struct.pack('<QQ', ctypes.addressof(held), 8)\ncall(310, VICTIM, vector, 1, vector, 1, 0)",
            "compare with another": "call(312, VICTIM, VICTIM, 0, 0, 0)",
            "priority of another": "call(140, 0, VICTIM)",
            "set another's priority": "call(141, 0, VICTIM, 19)",
            "set another's disk priority": "call(251, 1, VICTIM, 0x6000)",
            "scheduler of another": "call(145, VICTIM)",
            "robust list of another": "call(274, VICTIM, bytes(8), bytes(8))",
            "pages of another": "call(279, VICTIM, 0, 0, 0, 0, 0)",
            "time of another": "held = ctypes.create_string_buffer(16)\ncall(228, ((~VICTIM) << 3) | 2, held)",
        },
    ),
    *_make(
        "file",
        (ACCESS, FILES),
        {
            "read the passwords' file": "open('/etc/passwd')",
            "read a secret": "open('SECRET')",
            "list the root": "assert set(os.listdir('/')) - {'dev', 'root', 'run', 'usr', 'opt', 'home', 'lib'}",
            "list a folder": "os.listdir('FOLDER')",
            "list the processes": "assert any(name.isdigit() for name in os.listdir('/proc'))",
            "write a file": "open('FILE', 'w')",
            "append to a file": "open('FILE', 'a')",
            "make a file": "open('FOLDER/made', 'x')",
            "remove a file": "os.unlink('FILE')",
            "move a file here": "os.rename('FILE', 'mine')",
            "move a file there": "open('mine', 'w').close()\nos.rename('mine', 'FOLDER/moved')",
            "read the environment of another": "open('/proc/VICTIM/environ')",
            "read its own memory map": "open('/proc/self/maps')",
            "read the kernel's log": "open('/dev/kmsg')",
            "read the memory": "open('/dev/mem')",
            "open a terminal": "open('/dev/tty')",
            "open a pseudo-terminal": "os.open('/dev/ptmx', os.O_RDWR)",
            "write into the library": "open(os.__file__, 'a')",
            "make a file in the library": "open(os.path.dirname(os.__file__) + '/made.py', 'x')",
            "shared memory by its file": "open('/dev/shm/made', 'x')",
            "a socket's path": "os.unlink('SOCKET')",
            "up from here": "open('../' * 12 + 'etc/passwd')",
            "by the root of another": "open('/proc/VICTIM/root/etc/passwd')",
            "a temporary file elsewhere": "os.open('FOLDER', 0o20200000 | os.O_RDWR)",
        },
    ),
    *_make(
        "file",
        (CALLS, FILES),
        {
            "tell a size": "os.stat('FILE')",
            "tell a size by its number": "call(4, b'FILE', ctypes.create_string_buffer(144))",
            "tell a size by lstat": "call(6, b'FILE', ctypes.create_string_buffer(144))",
            "tell a size by newfstatat": "call(262, -100, b'FILE', ctypes.create_string_buffer(144), 0)",
            "tell a size by statx": "call(332, -100, b'FILE', 0, 0xFFF, ctypes.create_string_buffer(256))",
            "tell a size by a path alone": "os.fstat(os.open('FILE', os.O_PATH))",
            "does it exist": "call(21, b'FILE', 0)",
            "does it exist, by faccessat2": "call(439, -100, b'FILE', 0, 0)",
            "read a link": "call(89, b'/proc/self/exe', ctypes.create_string_buffer(99), 99)",
            "how full is the disk": "call(137, b'FOLDER', ctypes.create_string_buffer(256))",
            "change a mode": "call(90, b'FILE', 0o600)",
            "change a mode by fchmodat": "call(268, -100, b'FILE', 0o600)",
            "change a mode by fchmodat2": "call(452, -100, b'FILE', 0o600, 0)",
            "change an owner": "call(92, b'FILE', os.getuid(), os.getgid())",
            "change the times": "call(280, -100, b'FILE', 0, 0)",
            "change the times by utime": "call(132, b'FILE', 0)",
            "set an attribute": "call(188, b'FILE', b'user.a', b'x', 1, 0)",
            "read an attribute": "assert call(194, b'FILE', bytes(99), 99) >= 0",
            "mode of the library": "call(91, os.open(os.__file__, os.O_RDONLY), 0o644)",
            "times of the library": "call(280, os.open(os.__file__, os.O_RDONLY), 0, 0, 0)",
            "attribute of the library": "call(190, os.open(os.__file__, os.O_RDONLY), b'user.a', b'x', 1, 0)",
            "a handle": "call(303, -100, b'FILE', struct.pack('<Ii', 128, 0) + bytes(128), bytes(8), 0)",
            "watch a folder": "call(254, call(253), b'FOLDER', 0xFFF)",
        },
    ),
    *_make(
        "file",
        (CALLS,),
        {
            "make a folder": "call(83, b'x', 0o700)",
            "a symbolic link": "call(88, b'/etc', b'x')",
            "a hard link": "open('a', 'w').close()\ncall(86, b'a', b'b')",
            "a pipe with a name": "call(133, b'x', 0o010600, 0)",
            "watch files": "call(253)",
            "new kind of opening": "call(437, -100, b'.', bytes(24), 24)",
            "all to disk": "libc.sync.restype = None\nassert call(162) == 0",
            "requests in a ring": "call(425, 4, ctypes.create_string_buffer(120))",
            "splice": "a, b = os.pipe()\ncall(278, b, 0, 0, 0)",
        },
    ),
    *_make(
        "file",
        (CALLS, ACCESS, RIGHTS),
        {
            "a device": "call(133, b'x', 0o020600, 259)",
            "another root": "call(161, b'.')",
            "mount": "call(165, b'none', b'.', b'tmpfs', 0, 0)",
            "unmount": "call(166, b'/dev', 2)",
            "swap": "call(167, b'x', 0)",
            "an opened handle": "call(304, -100, bytes(136), 0)",
        },
    ),
    *_make(
        "file",
        (FILES,),
        {
            "report a size by a path that claims to be empty": "call(262, -100, b'FILE', ctypes.create_string_buffer(144), 0x1000)"
        },
    ),
    *_make(
        "network",
        (CALLS,),
        {
            "an IPv4 socket": "call(41, 2, 1, 0)",
            "an IPv6 socket": "call(41, 10, 2, 0)",
            "a local socket": "call(41, 1, 1, 0)",
            "a netlink socket": "call(41, 16, 3, 0)",
            "a crypto socket": "call(41, 38, 5, 0)",
            "a machine socket": "call(41, 40, 1, 0)",
            "a pair for datagrams": "call(53, 1, 2, 0, ctypes.create_string_buffer(8))",
            "an IPv4 pair": "assert call(53, 2, 1, 0, ctypes.create_string_buffer(8)) >= 0",
            "pass a descriptor": "a, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])",
            "credentials of a peer": "a, b = socket.socketpair()\na.getsockopt(1, 17, 12)",
            "a filter on a socket": "a, b = socket.socketpair()\na.setsockopt(1, 15, 1)",
            "give a name": "a, b = socket.socketpair()\ncall(49, a.fileno(), struct.pack('<H', 1) + bytes(1) + b'name', 7)",
        },
    ),
    *_make(
        "network",
        (CALLS, NETWORK),
        {
            "connect to this machine": "socket.create_connection(('127.0.0.1', PORT), 1)",
            "send a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
            "listen": "s = socket.socket()\ns.bind(('0.0.0.0', 0))\ns.listen()\nassert len(socket.if_nameindex()) > 1",
        },
    ),
    *_make(
        "network",
        (CALLS, FILES),
        {
            "send to a socket's path": "socket.socket(1, socket.SOCK_DGRAM).sendto(b'x', 'SOCKET')",
            "send to it from a pair": "a, b = socket.socketpair(1, socket.SOCK_DGRAM)\na.sendto(b'x', 'SOCKET')",
        },
    ),
    *_make(
        "clock",
        (CALLS, RIGHTS, USER, USERS),
        {
            "set the clock": "call(227, 0, struct.pack('<qq', 1_000_000_000, 0))",
            "set the time of day": "call(164, struct.pack('<qq', 1_000_000_000, 0), 0)",
            "adjust the clock": "call(159, struct.pack('<I', 1) + bytes(204))",
            "adjust one clock": "call(305, 0, struct.pack('<I', 1) + bytes(204))",
            "name the host": "call(170, b'x', 1)",
            "name the domain": "call(171, b'x', 1)",
            "restart": "call(169, 0xfee1dead, 672274793, 0, 0)",
        },
    ),
    *_make(
        "clock",
        (CALLS,),
        {
            "read the adjustment": "call(305, 0, bytes(208))",
            "a timer with a signal": "call(222, 0, 0, ctypes.create_string_buffer(8))",
            "nice": "call(141, 0, 0, 19)",
            "own disk priority": "call(251, 1, 0, 0x6000)",
            "own scheduler": "call(144, 0, 3, bytes(4))",
            "own affinity": "call(203, 0, 8, b'\\xff' * 8)",
        },
    ),
    *_make(
        "memory",
        ("limits",),
        {
            "two gigabytes": "x = bytearray(2 << 30)",
            "two gigabytes by mapping": "import mmap\nmmap.mmap(-1, 2 << 30)",
            "two gigabytes in pieces": "x = []\nwhile len(x) < 2048: x.append(bytearray(1 << 20))",
            "raise the limit": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nx = bytearray(2 << 30)",
            "keep memory": "call(149, ctypes.create_string_buffer(1 << 20), 1 << 20)",
            "a file of a gigabyte": "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "f = open('a', 'wb')\nf.truncate(1 << 30)",
        },
    ),
    *_make(
        "memory",
        (CALLS,),
        {
            "a file in memory": "call(319, b'x', 0)",
            "shared memory": "call(29, 0, 4096, 0o1600)",
            "a message queue": "call(68, 0, 0o1600)",
            "semaphores": "call(64, 0, 1, 0o1600)",
            "a queue with a name": "call(240, b'x', 0o102, 0o600, 0)",
            "faults of pages": "call(323, 1)",
            "memory policy": "call(238, 0, 0, 0)",
            "is it in the cache": "call(27, ctypes.create_string_buffer(8192), 0, bytes(8))",
            "a secret file in memory": "call(447, 0)",
            "a program in the kernel": "call(321, 0, bytes(72), 72)",
            "counters": "call(298, bytes(120), 0, -1, -1, 0)",
            "protection keys": "call(330, 0, 0)",
        },
    ),
    *_make(
        "descriptor",
        (CALLS, "limits"),
        {
            "descriptors that are open": "assert [n for n in range(3, 1024) if call(72, n, 1) >= 0]",
            "more descriptors than allowed": "held = [os.dup(0) for _ in range(200)]",
            "a descriptor of another": "call(438, 3, 0, 0)",
            "type into the terminal": "fcntl.ioctl(0, 0x5412, b'x')",
            "take the terminal": "fcntl.ioctl(0, 0x540E, 0)",
            "leave the terminal": "fcntl.ioctl(0, 0x5422, 0)",
            "a lease": "f = open('a', 'w')\nfcntl.fcntl(f, 1024, 1)\nassert os.getuid() == 0",
            "a notice": "fcntl.fcntl(os.open('/dev', os.O_RDONLY), 1026, 0x3F)",
        },
    ),
    *_make(
        "environment",
        ("limits",),
        {
            "names of the host's environment": "assert os.environ or os.getenv('HOME') or os.getenv('PATH')",
            "the C library's environment": "libc.getenv.restype = ctypes.c_char_p\n"
            "assert libc.getenv(b'HOME') or libc.getenv(b'PATH')",
            "arguments of the server": "assert any('server' in one for one in sys.argv + sys.path)",
            "installed packages": "import gymnasium",
            "the sandbox's own modules": "import fedagentgym",
        },
    ),
    *_make(
        "environment",
        (CALLS, RIGHTS, USER, USERS),
        {
            "become root": "assert os.getuid() != 0\ncall(117, 0, 0, 0)",
            "become another user": "call(117, 1, 1, 1)",
            "groups": "call(116, 1, struct.pack('<i', 0))",
            "load a module": "call(175, bytes(8), 8, b'')",
            "accounting": "call(163, 0)",
            "a new kernel": "call(246, 0, 0, 0, 0)",
            "ports": "call(173, 0x80, 1, 1)",
            "all ports": "call(172, 3)",
        },
    ),
    *_make(
        "environment",
        (CALLS,),
        {
            "rights": "call(126, struct.pack('<II', 0x20080522, 0), bytes(24))",
            "a key": "call(248, b'user', b'name', b'x', 1, -3)",
            "look for a key": "call(250, 0, -4, 0)",
            "ask for a key": "assert call(249, b'user', b'none', 0, 0) >= 0",
            "the kernel's messages": "call(103, 10, 0, 0)",
        },
    ),
    *_make(
        "introspection",
        (NETWORK,),
        {"name of the host": "assert os.uname().nodename == 'HOSTNAME'"},
    ),
    *_make(
        "introspection",
        ("limits",),
        {
            "orders of the server": "import gc\nassert any(isinstance(o, dict) and 'expected' in o for o in gc.get_objects())",
            "the control channel": "import gc\n"
            "held = [o for o in gc.get_objects() if isinstance(o, socket.socket) and o.fileno() >= 0]\nheld[0].getpeername()",
            "frames of the server": "f = sys._getframe()\nwhile f.f_back: f = f.f_back\n"
            "f.f_locals['control'].send(b'xxxx')",
            "the watcher's pipes": "import gc\nfor n in range(3, 300):\n    try: os.write(n, b'x')\n"
            "    except OSError: continue\n    break\nelse: raise OSError",
        },
    ),
]


def write_program(probe: Probe, words: dict[str, str]) -> str:
    """The program of a probe: it prints ESCAPED when its attempt succeeds."""
    body = probe.body
    for word, meant in words.items():
        body = body.replace(word, meant)
    indented = "\n".join(f"    {line}" for line in body.split("\n"))
    return f"{START}\ntry:\n{indented}\nexcept BaseException as error:\n    print('held', repr(error)[:200])\nelse:\n    print('ESCAPED')\n"
