"""How the mathematics verifier reads answers and decides what is equal.

- `numbers`, `units`, `words`: plain numbers with units or a sentence around them, the rule for decimals, golds that are words;
- `limits`: answers that are refused before anybody works on them;
- `tokens`, `notation`, `syntax`: expressions, parsed into trees;
- `values`, `equality`, `equations`: their values, and when expressions, equations and inequalities are equal;
- `bounds`, `regions`, `joining`: sets of real numbers, and answers side by side;
- `kinds`, `splitting`, `reading`: what kind of answer a text is;
- `scalars`, `rules`: what is equal, decided by the kind of the gold answer.
"""
