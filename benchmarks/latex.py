"""A page of the documentation as a LaTeX article: headings, paragraphs, lists, tables, pictures, code, links, and nothing else.

Every LaTeX distribution has the packages that the article uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

SITE = "https://fedagentgym.github.io/fedagentgym/"
"""The address to which relative links of the page are resolved, as if the page were in a folder of the documentation."""
HEAD = r"""\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage[margin=1in]{geometry}
\usepackage{longtable,booktabs,array,graphicx}
\usepackage[hidelinks]{hyperref}
\newcolumntype{Y}[1]{>{\raggedright\arraybackslash}p{\dimexpr#1\linewidth-2\tabcolsep}}
\setlength{\parindent}{0pt}\setlength{\parskip}{5pt}\sloppy
\title{TITLE}
\author{The fedagentgym developers}
\date{}
\begin{document}
\maketitle
"""
SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
} | {sign: f"\\{sign}" for sign in "#$%&_"}
AROUND = {
    "em_open": r"\emph{",
    "em_close": "}",
    "strong_open": r"\textbf{",
    "strong_close": "}",
    "link_close": "}",
    "softbreak": "\n",
    "paragraph_open": "",
    "paragraph_close": "\n\n",
    "bullet_list_open": "\\begin{itemize}\n",
    "bullet_list_close": "\\end{itemize}\n\n",
    "ordered_list_open": "\\begin{enumerate}\n",
    "ordered_list_close": "\\end{enumerate}\n\n",
    "list_item_open": r"\item ",
    "list_item_close": "",
    "html_inline": "",
    "html_block": "",
}
"""The LaTeX for a token of Markdown; tokens that are missing here produce no text."""


LINE, GAP, MAX_SIGNS = 110, 4, 60
"""Sizes of a table in characters: the width of a line, the gap between two columns, and the largest width of a cell."""


def write_latex(text: str) -> str:
    """The LaTeX article of a page; the page's first heading is the title."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    title, rest = _write_inline(tokens[1].children or []), iter(tokens[3:])
    body = "".join(_write_block(token, rest) for token in rest)
    return HEAD.replace("TITLE", title) + re.sub(r"\n{3,}", "\n\n", body) + "\\end{document}\n"


def _write_block(token: Token, rest: Iterator[Token]) -> str:
    """The LaTeX for a token; a table consumes the tokens up to its end."""
    if token.type == "inline":
        return _write_inline(token.children or [])
    if token.type == "heading_open":
        return {"h2": r"\section*{", "h3": r"\subsection*{"}[token.tag]
    if token.type == "heading_close":
        return "}\n\n"
    if token.type == "fence":
        return f"{{\\footnotesize\n\\begin{{verbatim}}\n{token.content}\\end{{verbatim}}}}\n\n"
    if token.type == "table_open":
        return _write_table(rest)
    return AROUND.get(token.type, "")


def _write_table(rest: Iterator[Token]) -> str:
    """A table whose head is repeated after a page break."""
    rows: list[list[Token]] = []
    for token in rest:
        if token.type == "table_close":
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(token)
    head, *lines = (" & ".join(_write_inline(cell.children or []) for cell in row) + " \\\\\n" for row in rows)
    columns = "".join(f"Y{{{share:.3f}}}" for share in _share_width(rows))
    return (
        f"{{\\footnotesize\n\\begin{{longtable}}{{{columns}}}\n\\toprule\n{head}\\midrule\n\\endhead\n\\bottomrule\n\\endlastfoot\n"
        f"{''.join(lines)}\\end{{longtable}}}}\n\n"
    )


def _share_width(rows: Sequence[Sequence[Token]]) -> list[float]:
    """The columns' shares of the width of a line, which add up to one. No word is broken; columns with longer cells get the
    remaining width."""
    columns = [[_read_text(cell) for cell in column] for column in zip(*rows, strict=True)]
    words = [max((_measure(word) for text in texts for word in text.split()), default=0) + GAP for texts in columns]
    longer = [
        max(min(max(map(len, texts)), MAX_SIGNS) + GAP - word, 0) for texts, word in zip(columns, words, strict=True)
    ]
    spread = min((LINE - sum(words)) / max(sum(longer), 1), 1)
    signs = [word + spread * more for word, more in zip(words, longer, strict=True)]
    return [count / sum(signs) for count in signs]


def _measure(word: str) -> float:
    """The width of a word in characters; a capital is a third wider than other letters."""
    return len(word) + sum(map(str.isupper, word)) / 3


def _read_text(cell: Token) -> str:
    """The text of a cell without links and markup."""
    return "".join(one.content for one in cell.children or [] if one.type in ("text", "code_inline"))


def _write_inline(tokens: Sequence[Token]) -> str:
    parts = []
    for token in tokens:
        if token.type == "text":
            parts.append(escape_latex(token.content))
        elif token.type == "code_inline":
            parts.append(f"\\texttt{{{escape_latex(token.content)}}}")
        elif token.type == "link_open":
            parts.append(f"\\href{{{_escape_link(str(token.attrs['href']))}}}{{")
        elif token.type == "image":
            parts.append(f"\\includegraphics[width=0.7\\linewidth]{{{token.attrs['src']}}}")
        else:
            parts.append(AROUND[token.type])
    return "".join(parts).strip(" ")


def escape_latex(text: str) -> str:
    r"""A text with LaTeX's special characters escaped.

    >>> escape_latex("50 % of {a_b} ± 1")
    '50 \\% of \\{a\\_b\\} $\\pm$ 1'
    """
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def _escape_link(target: str) -> str:
    """The absolute address of a link, with per cent and number signs escaped."""
    if "://" not in target:
        page, _, anchor = target.partition("#")
        target = (
            SITE
            + page.removeprefix("../").removesuffix("index.md").replace(".md", "/")
            + (f"#{anchor}" if anchor else "")
        )
    return target.replace("%", r"\%").replace("#", r"\#")
