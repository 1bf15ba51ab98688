"""The words of the site's observations and actions, for agents whose vocabulary is made for it."""

from __future__ import annotations

from collections.abc import Iterator

from fedagentgym.envs.webshop import lexicon, pages
from fedagentgym.envs.webshop.stock import ShopData

READ_PRODUCTS = 2000
_PAGE_WORDS = (
    "search click SEP WebShop Instruction Page Total results Price Rating N.A. and price lower than dollars with You have "
    "clicked button Thank you for shopping with us! Your code: None Paste it in your MTurk interface. Purchased asin options "
    "attrs category query product Target upper instuction text Goal Reward score min max Details"
)


def iter_vocabulary(stock: ShopData) -> Iterator[str]:
    """Page labels, and what is said of products: of all in a small shop, of the first two thousand in a large one, where
    product numbers are left to be spelt."""
    yield _PAGE_WORDS
    for label in (pages.BACK, pages.PREVIOUS, pages.NEXT, pages.BUY, *pages.SUB_PAGES):
        yield label
        yield label.lower()
    catalogue = stock.catalogue
    for row in range(min(len(catalogue), READ_PRODUCTS)):
        product = catalogue.read_product(row)
        if len(catalogue) <= READ_PRODUCTS:
            yield product.asin
            yield product.asin.lower()
        for text in (product.title, product.description, *product.bullets, product.query, *product.attributes):
            yield text
            yield text.lower()
        for name, values in product.options.items():
            yield name
            yield from values
        instructions = catalogue.read_instructions(row)
        yield instructions.text or ""
        yield from (entry["instruction"] for entry in instructions.human)
    if len(catalogue) > READ_PRODUCTS and stock.folder is not None and "generator" in stock.source:
        for department in lexicon.DEPARTMENTS:
            yield from (*department.attributes, *department.looks, *department.materials, *department.uses)
