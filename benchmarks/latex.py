"""A page of the documentation as a LaTeX article: headings, paragraphs, lists, tables, code and links, and nothing else.

The packages that it asks for come with every LaTeX. It was never typeset: tests check that groups and environments close.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

SITE = "https://fedagentgym.github.io/fedagentgym/"
"""The address below which relative links of the page lead, as if it lay in a folder of the documentation."""
HEAD = r"""\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[margin=1in]{geometry}
\usepackage{tabularx,booktabs,array}
\usepackage[hidelinks]{hyperref}
\newcolumntype{Y}{>{\raggedright\arraybackslash}X}
\setlength{\parindent}{0pt}\setlength{\parskip}{5pt}
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
    "thead_close": "\\midrule\n",
    "tr_close": " \\\\\n",
    "table_close": "\\bottomrule\n\\end{tabularx}}\n\n",
    "html_inline": "",
    "html_block": "",
}
"""The text for a token of Markdown; those that are missing here have none."""


def write_latex(text: str) -> str:
    """The article of a page; its first heading is the title."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    title, rest = _write_inline(tokens[1].children or []), tokens[3:]
    body = "".join(_write_token(token, rest[place:]) for place, token in enumerate(rest))
    return HEAD.replace("TITLE", title) + re.sub(r"\n{3,}", "\n\n", body) + "\\end{document}\n"


def _write_token(token: Token, rest: Sequence[Token]) -> str:
    if token.type == "inline":
        return _write_inline(token.children or [])
    if token.type == "heading_open":
        return {"h2": r"\section*{", "h3": r"\subsection*{"}[token.tag]
    if token.type == "heading_close":
        return "}\n\n"
    if token.type == "fence":
        return f"\\begin{{verbatim}}\n{token.content}\\end{{verbatim}}\n\n"
    if token.type == "table_open":
        columns = next(number for number, one in enumerate(rest) if one.type == "thead_close")
        count = sum(one.type == "th_open" for one in rest[:columns])
        return f"{{\\footnotesize\n\\begin{{tabularx}}{{\\textwidth}}{{{'Y' * count}}}\n\\toprule\n"
    if token.type in ("th_open", "td_open"):  # behind the first cell of a row
        return "" if token.meta.get("first") else " & "
    if token.type == "tr_open":
        rest[1].meta["first"] = True
        return ""
    return AROUND.get(token.type, "")


def _write_inline(tokens: Sequence[Token]) -> str:
    parts = []
    for token in tokens:
        if token.type == "text":
            parts.append(escape_latex(token.content))
        elif token.type == "code_inline":
            parts.append(f"\\texttt{{{escape_latex(token.content)}}}")
        elif token.type == "link_open":
            parts.append(f"\\href{{{_escape_link(str(token.attrs['href']))}}}{{")
        else:
            parts.append(AROUND[token.type])
    return "".join(parts).strip(" ")


def escape_latex(text: str) -> str:
    r"""A text in which nothing is a command.

    >>> escape_latex("50 % of {a_b} ± 1")
    '50 \\% of \\{a\\_b\\} $\\pm$ 1'
    """
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def _escape_link(target: str) -> str:
    """An absolute address, with its per cent and number signs escaped."""
    if "://" not in target:
        page, _, anchor = target.partition("#")
        target = (
            SITE
            + page.removeprefix("../").removesuffix("index.md").replace(".md", "/")
            + (f"#{anchor}" if anchor else "")
        )
    return target.replace("%", r"\%").replace("#", r"\#")
