"""The mathematics verifier: it reads answers and compares them.

- `numbers`: plain numbers with units or a sentence around them, the rule for decimals;
- `syntax`, `values`: expressions, parsed into trees, and their values;
- `equality`: when expressions, equations and inequalities are equal;
- `regions`, `kinds`, `reading`: sets of real numbers, the kinds of answers, and the kind of a text;
- `rules`: equality, by the kind of the gold answer.
"""
