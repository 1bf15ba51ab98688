"""Programs that do nothing wrong: each has to end well and print what is expected."""
# ruff: noqa: E501

from __future__ import annotations

PROGRAMS: dict[str, tuple[str, str]] = {
    "threads": (
        "import threading\nfound = []\nlock = threading.Lock()\ndef work(n):\n    with lock: found.append(n * n)\n"
        "ts = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n[t.start() for t in ts]\n[t.join() for t in ts]\n"
        "print(sorted(found))",
        "[0, 1, 4, 9, 16, 25, 36, 49]",
    ),
    "a thread that outlives the main one": (
        "import threading, time\ndef work():\n    time.sleep(0.05); print('late')\nthreading.Thread(target=work).start()\nprint('main')",
        "main\nlate",
    ),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as pool:\n    print(list(pool.map(len, ['a', 'bb', 'ccc'])))",
        "[1, 2, 3]",
    ),
    "a queue between threads": (
        "import queue, threading\nq = queue.Queue()\nthreading.Thread(target=lambda: q.put(5)).start()\nprint(q.get(timeout=2))",
        "5",
    ),
    "deep recursion on a large stack": (
        "import sys, threading\nsys.setrecursionlimit(60000)\nthreading.stack_size(128 << 20)\nout = []\n"
        "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\nt = threading.Thread(target=lambda: out.append(depth(50000)))\n"
        "t.start(); t.join(); print(out)",
        "[50000]",
    ),
    "recursion": ("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(20))", "6765"),
    "too deep recursion is caught": (
        "def f(): f()\ntry: f()\nexcept RecursionError: print('caught')",
        "caught",
    ),
    "asyncio": (
        "import asyncio\nasync def one(n):\n    await asyncio.sleep(0.01); return n\n"
        "async def main(): print(await asyncio.gather(*map(one, range(4))))\nasyncio.run(main())",
        "[0, 1, 2, 3]",
    ),
    "asyncio in a thread": (
        "import asyncio\nasync def main(): print(await asyncio.to_thread(sum, [1, 2]))\nasyncio.run(main())",
        "3",
    ),
    "a temporary file": (
        "import tempfile\nwith tempfile.TemporaryFile('w+') as f:\n    f.write('abc'); f.seek(0); print(f.read())",
        "abc",
    ),
    "a named temporary file": (
        "import os, tempfile\nwith tempfile.NamedTemporaryFile('w', delete=False) as f: f.write('abcd')\n"
        "print(os.path.getsize(f.name), os.path.exists(f.name))\nos.unlink(f.name)\nprint(os.path.exists(f.name))",
        "4 True\nFalse",
    ),
    "mkstemp": (
        "import os, tempfile\nfd, path = tempfile.mkstemp()\nos.write(fd, b'x'); os.close(fd)\nprint(open(path).read())",
        "x",
    ),
    "a spooled file": (
        "import tempfile\nwith tempfile.SpooledTemporaryFile(10) as f:\n    f.write(b'x' * 100); f.seek(0); print(len(f.read()))",
        "100",
    ),
    "files and folders": (
        "import os, glob, pathlib\npathlib.Path('b.txt').write_text('2')\nopen('a.txt', 'w').write('1')\n"
        "print(sorted(os.listdir()), sorted(glob.glob('*.txt')), pathlib.Path('a.txt').stat().st_size, os.path.isfile('a.txt'))",
        "['a.txt', 'b.txt'] ['a.txt', 'b.txt'] 1 True",
    ),
    "scan a folder": (
        "import os\nopen('x', 'w').close()\nprint([(e.name, e.is_file(), e.is_dir()) for e in os.scandir('.')])",
        "[('x', True, False)]",
    ),
    "rename and remove": (
        "import os\nopen('x', 'w').write('1')\nos.replace('x', 'y')\nprint(open('y').read())\nos.remove('y')\nprint(os.listdir('.'))",
        "1\n[]",
    ),
    "copy a file": (
        "import shutil\nopen('x', 'w').write('abc')\nshutil.copyfile('x', 'y')\nshutil.copy('y', 'z')\n"
        "shutil.move('z', 'w')\nprint(open('w').read())",
        "abc",
    ),
    "a memory map of a file": (
        "import mmap\nopen('x', 'wb').write(b'abc')\nwith open('x', 'r+b') as f:\n    with mmap.mmap(f.fileno(), 0) as m: m[0:1] = b'A'\n"
        "print(open('x').read())",
        "Abc",
    ),
    "truncate": ("f = open('x', 'w+')\nf.write('abcdef'); f.truncate(3); f.seek(0)\nprint(f.read())", "abc"),
    "csv": (
        "import csv\nwith open('t.csv', 'w', newline='') as f: csv.writer(f).writerows([[1, 'a,b'], [2, 'c']])\n"
        "print(list(csv.reader(open('t.csv'))))",
        "[['1', 'a,b'], ['2', 'c']]",
    ),
    "pickle and shelve's neighbours": (
        "import pickle\npickle.dump({1: {2}}, open('p', 'wb'))\nprint(pickle.load(open('p', 'rb')))",
        "{1: {2}}",
    ),
    "a zip file": (
        "import zipfile\nwith zipfile.ZipFile('z.zip', 'w', zipfile.ZIP_DEFLATED) as z: z.writestr('a', 'b' * 99)\n"
        "print(zipfile.ZipFile('z.zip').read('a') == b'b' * 99)",
        "True",
    ),
    "compression": (
        "import bz2, gzip, lzma, zlib\nd = b'x' * 999\nprint(all(m.decompress(m.compress(d)) == d for m in (bz2, gzip, lzma, zlib)))",
        "True",
    ),
    "large integers": ("print(len(str(3 ** 9000)), 2 ** 4000 % 1000007)", "4295 " + str(2**4000 % 1000007)),
    "factorials": (
        "import math\nprint(math.factorial(500) % (10 ** 9 + 7), math.comb(100, 50))",
        "688653593 100891344545564193334812497256",
    ),
    "decimals": (
        "from decimal import Decimal, getcontext\ngetcontext().prec = 50\nprint(Decimal(2).sqrt())",
        "1.4142135623730950488016887242096980785696718753769",
    ),
    "fractions": ("from fractions import Fraction as F\nprint(sum(F(1, n) for n in range(1, 11)))", "7381/2520"),
    "itertools": (
        "from itertools import permutations, groupby, accumulate\n"
        "print(len(list(permutations(range(7)))), [(k, len(list(g))) for k, g in groupby('aabc')], list(accumulate([1, 2, 3])))",
        "5040 [('a', 2), ('b', 1), ('c', 1)] [1, 3, 6]",
    ),
    "a generator that ends": (
        "def g():\n    yield 1\n    return\nit = g()\nnext(it)\ntry: next(it)\nexcept StopIteration: print('over')",
        "over",
    ),
    "heavy regular expressions": (
        "import re\ntext = 'ab' * 100000\nprint(len(re.findall(r'(?:ab){3}', text)), re.sub(r'(a)(b)', r'\\2\\1', 'abab'))",
        "33333 baba",
    ),
    "two hundred megabytes": ("x = bytearray(200 << 20)\nx[-1] = 7\nprint(len(x), x[-1])", f"{200 << 20} 7"),
    "a million items": ("d = {i: i * i for i in range(10 ** 6)}\nprint(sum(d.values()) % 1000)", "0"),
    "out of memory is caught": ("try: x = bytearray(1 << 34)\nexcept MemoryError: print('caught')", "caught"),
    "sieve": (
        "n = 200000\ns = bytearray([1]) * (n + 1)\nfor i in range(2, 448):\n    if s[i]: s[i * i::i] = bytes(len(range(i * i, n + 1, i)))\n"
        "print(sum(s[2:]))",
        "17984",
    ),
    "heaps and bisection": (
        "import heapq, bisect\nh = [5, 1, 4]\nheapq.heapify(h)\nprint(heapq.heappop(h), bisect.bisect([1, 3, 5], 3))",
        "1 2",
    ),
    "collections": (
        "from collections import Counter, defaultdict, deque, OrderedDict\nd = deque([1, 2], maxlen=2)\nd.append(3)\n"
        "print(Counter('abca').most_common(1), list(d))",
        "[('a', 2)] [2, 3]",
    ),
    "classes and data classes": (
        "from dataclasses import dataclass, field\nfrom functools import total_ordering, lru_cache\n@dataclass(order=True)\n"
        "class P:\n    x: int\n    y: list = field(default_factory=list)\nprint(P(1) < P(2), P(3))",
        "True P(x=3, y=[])",
    ),
    "enumerations and types": (
        "import enum, typing\nclass C(enum.IntFlag):\n    A = 1\n    B = 2\nprint((C.A | C.B).value, typing.get_type_hints(lambda: 0))",
        "3 {}",
    ),
    "dates and zones": (
        "from datetime import datetime, timedelta, timezone\n"
        "print(datetime(2024, 2, 28, tzinfo=timezone.utc) + timedelta(days=2))\nimport calendar\nprint(calendar.isleap(2024))",
        "2024-03-01 00:00:00+00:00\nTrue",
    ),
    "clocks": (
        "import time\na = time.perf_counter()\ntime.sleep(0.02)\nprint(time.perf_counter() - a > 0.01, time.process_time() >= 0,"
        " time.time() > 1e9, time.thread_time() >= 0, time.monotonic_ns() > 0)",
        "True True True True True",
    ),
    "a timer's signal": (
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: print('rang'))\nsignal.setitimer(signal.ITIMER_REAL, 0.02)\n"
        "time.sleep(0.1)\nprint('on')",
        "rang\non",
    ),
    "hashes and random bytes": (
        "import hashlib, os, secrets, uuid\nprint(hashlib.sha256(b'a').hexdigest()[:8], len(os.urandom(8)),"
        " len(secrets.token_hex(4)), uuid.uuid4().version)",
        "ca978112 8 8 4",
    ),
    "chance": ("import random\nrandom.seed(5)\nprint(random.randint(1, 100), random.sample(range(9), 2))", "80 [4, 5]"),
    "statistics": (
        "import statistics as s\nprint(s.mean([1, 2, 3]), s.median([3, 1, 2]), round(s.stdev([1, 2, 4]), 3))",
        "2 2 1.528",
    ),
    "json, base64, struct": (
        "import json, base64, struct, textwrap\nprint(json.loads(json.dumps({'a': [1, None]})), base64.b64encode(b'a'), struct.pack('<I', 7))",
        "{'a': [1, None]} b'YQ==' b'\\x07\\x00\\x00\\x00'",
    ),
    "trees of syntax": (
        "import ast, dis, inspect, tokenize\nprint(ast.unparse(ast.parse('a=1+2')), eval('3*4'))",
        "a = 1 + 2 12",
    ),
    "unicode": (
        "import unicodedata\nprint(unicodedata.name('é'), 'ß'.upper(), 'é'.encode())",
        "LATIN SMALL LETTER E WITH ACUTE SS b'\\xc3\\xa9'",
    ),
    "xml, html, web addresses": (
        "import xml.etree.ElementTree as E, html, urllib.parse as u\nprint(E.fromstring('<a><b>1</b></a>').find('b').text,"
        " html.escape('<'), u.urlparse('http://a/b?c=1').query)",
        "1 &lt; c=1",
    ),
    "command lines and logs": (
        "import argparse, io, logging, contextlib\np = argparse.ArgumentParser(prog='p')\np.add_argument('--n', type=int)\n"
        "print(p.parse_args(['--n', '3']).n)\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): print('x')\nprint(b.getvalue().strip())",
        "3\nx",
    ),
    "tests of its own": (
        "import unittest, sys\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 1)\n"
        "r = unittest.main(argv=['x'], exit=False, verbosity=0).result\nprint(r.testsRun)",
        "1",
    ),
    "a traceback of its own": (
        "import traceback, warnings\ntry: 1 / 0\nexcept ZeroDivisionError: print(traceback.format_exc().strip().split('\\n')[-1])",
        "ZeroDivisionError: division by zero",
    ),
    "at the end": ("import atexit\natexit.register(print, 'bye')\nprint('hello')", "hello\nbye"),
    "leave with 0": ("import sys\nprint('done')\nsys.exit(0)", "done"),
    "arrays, weak references, copies": (
        "import array, copy, weakref, gc\nclass A: pass\na = A()\nr = weakref.ref(a)\ndel a\ngc.collect()\nprint(r(), array.array('i', [1, 2]).tolist())",
        "None [1, 2]",
    ),
    "pipes and selection": (
        "import os, select, selectors, socket\nr, w = os.pipe()\nos.write(w, b'x')\nprint(select.select([r], [], [], 1)[0] == [r], os.read(r, 1))\n"
        "a, b = socket.socketpair()\na.sendall(b'y')\nprint(b.recv(1))",
        "True b'x'\nb'y'",
    ),
    "where am I": (
        "import os, sys, platform, getpass\nprint(os.cpu_count() >= 1, sys.version_info >= (3, 11), platform.system(), os.getpid() > 0)",
        "True True Linux True",
    ),
    "context variables and locals": (
        "import contextvars, threading\nv = contextvars.ContextVar('v', default=1)\nl = threading.local()\nl.x = 2\nprint(v.get(), l.x)",
        "1 2",
    ),
    "a module of its own": (
        "import sys\nopen('mine.py', 'w').write('x = 41')\nsys.path.insert(0, '.')\nsys.dont_write_bytecode = True\nimport mine\nprint(mine.x + 1)",
        "42",
    ),
    "a locked file": (
        "import fcntl\nf = open('x', 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\nfcntl.lockf(f, fcntl.LOCK_UN)\nprint('locked')",
        "locked",
    ),
    "limits of its own": (
        "import resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\nresource.setrlimit(resource.RLIMIT_NOFILE, (32, hard))\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrusage(resource.RUSAGE_SELF).ru_utime >= 0)",
        "32 True",
    ),
}

REFUSED: dict[str, tuple[str, str]] = {
    "a process": (
        "import multiprocessing as m\nif __name__ == '__main__':\n    p = m.Process(target=print)\n    p.start()",
        "programs may not start processes here; use threads",
    ),
    "a pool of processes": (
        "import multiprocessing as m\nif __name__ == '__main__':\n    m.Pool(2).map(abs, [1])",
        "programs may not start processes here; use threads",
    ),
    "an executor of processes": (
        "from concurrent.futures import ProcessPoolExecutor\nif __name__ == '__main__':\n    ProcessPoolExecutor(2).submit(abs, 1)",
        "programs may not start processes here; use threads",
    ),
    "a pool of multiprocessing's threads": (
        "from multiprocessing.pool import ThreadPool\nThreadPool(2).map(abs, [1])",
        "programs may not start processes here; use threads",
    ),
    "a spawned process": (
        "import multiprocessing as m\nif __name__ == '__main__':\n    m.get_context('spawn').Process(target=print).start()",
        "programs may not start",
    ),
    "a fork": ("import os\nos.fork()", "programs may not start processes here; use threads"),
    "a program": ("import subprocess\nsubprocess.run(['ls'])", "programs may not start other programs here"),
    "a shell": ("import os\nos.system('ls')", "programs may not start other programs here"),
    "a new image": ("import os\nos.execv('/bin/ls', ['ls'])", "programs may not start other programs here"),
}
"""Programs that are refused, and the words that the program's error has to hold."""
