"""How the mathematics verifier reads answers and decides what is equal.

- `numbers`, `units`: plain numbers with units or a sentence around them, and the rule for decimals;
- `limits`: answers that are refused before anybody works on them;
- `syntax`, `values`: expressions, parsed and evaluated;
- `regions`: sets of real numbers, made of intervals;
- `kinds`, `reading`: what kind of answer a text is;
- `rules`: what is equal, decided by the kind of the gold answer.
"""
