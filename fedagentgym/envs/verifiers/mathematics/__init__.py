"""How the mathematics verifier reads answers and compares them.

- `numbers`, `units`, `words`: plain numbers with units or a sentence around them, the rule for decimals, golds that are words;
- `limits`: answers that are refused before any computation;
- `tokens`, `notation`, `syntax`: expressions, parsed into trees;
- `values`, `equality`, `equations`: their values, and when expressions, equations and inequalities are equal;
- `bounds`, `regions`, `joining`: sets of real numbers, and answers side by side;
- `kinds`, `splitting`, `reading`: the kind of answer of a text;
- `scalars`, `rules`: equality, by the kind of the gold answer.
"""
