"""The words of the generated shop: kinds of product, their descriptions, and their options.

Everything here is plain vocabulary; how it is put together is in `generate.py`.
"""

# ruff: noqa: E501 - the tables of kinds read better with one kind per line

from __future__ import annotations

from typing import NamedTuple

from fedagentgym.envs.webshop.analysis import split_list


class ProductKind(NamedTuple):
    """A kind of product: its search category, its category path, its names in titles, its price range."""

    query: str
    path: str
    nouns: tuple[str, ...]
    low: int
    high: int
    sizes: str


class Department(NamedTuple):
    """A category: its share among products, its kinds, and the words its sellers use."""

    name: str
    share: float
    kinds: tuple[ProductKind, ...]
    attributes: tuple[str, ...]
    looks: tuple[str, ...]
    materials: tuple[str, ...]
    uses: tuple[str, ...]
    parts: tuple[str, ...]
    choices: tuple[str, ...]
    instructed: float


def _parse_kinds(text: str, sizes: str) -> tuple[ProductKind, ...]:
    """One kind per line: query | path | nouns | lowest price | highest price [| name of its sizes]."""
    kinds = []
    for line in text.strip().splitlines():
        query, path, nouns, low, high, *own = (part.strip() for part in line.split("|"))
        place = " › ".join(part.strip() for part in path.split(">"))
        kinds.append(
            ProductKind(query, place, split_list(f"{nouns},")[:-1], int(low), int(high), own[0] if own else sizes)
        )
    return tuple(kinds)


COLORS = split_list(
    "black, white, navy, navy blue, royal blue, sky blue, light blue, dark blue, teal, turquoise, mint green, army green, "
    "dark green, olive, grey, dark grey, light grey, charcoal, silver, beige, khaki, camel, brown, dark brown, coffee, "
    "caramel, ivory, cream, red, wine red, burgundy, rose red, coral, orange, rust, yellow, mustard, gold, rose gold, pink, "
    "light pink, hot pink, peach, purple, lavender, plum, multicolor, leopard"
)
SIZES = {
    "letters": split_list("x-small, small, medium, large, x-large, xx-large, 3x-large, 4x-large, 5x-large"),
    "shoes": split_list("5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5, 10, 10.5, 11, 12"),
    "waists": split_list(
        "28w x 30l, 30w x 30l, 30w x 32l, 32w x 30l, 32w x 32l, 34w x 32l, 36w x 32l, 38w x 30l, 40w x 32l"
    ),
    "rooms": split_list("2 ft x 3 ft, 3 ft x 5 ft, 4 ft x 6 ft, 5 ft x 8 ft, 6 ft x 9 ft, 8 ft x 10 ft, 9 ft x 12 ft"),
    "squares": split_list("12 inch, 14 inch, 16 inch, 18 inch, 20 inch, 22 inch, 24 inch, 26 inch, 28 inch"),
    "beds": split_list("twin, twin xl, full, queen, king, california king"),
    "ounces": split_list("1 fl oz, 1.7 fl oz, 2 fl oz, 3.4 fl oz, 4 fl oz, 6.8 fl oz, 8 fl oz, 12 fl oz, 16 fl oz"),
    "counts": split_list("1 count, 2 count, 3 count, 4 count, 6 count, 8 count, 10 count, 12 count"),
    "lengths": split_list("3 feet, 6 feet, 10 feet, 15 feet, 25 feet, 35 feet, 50 feet"),
    "packs": split_list(
        "6 ounce (pack of 1), 8 ounce (pack of 2), 10 ounce (pack of 3), 12 ounce (pack of 4), 16 ounce (pack of 6), "
        "24 ounce (pack of 8), 32 ounce (pack of 12)"
    ),
    "devices": split_list(
        "iphone 11, iphone 12, iphone 13, iphone 13 pro, galaxy s20, galaxy s21, galaxy s22, pixel 6"
    ),
}
VALUES = {
    "color": COLORS,
    "scent": split_list(
        "lavender, vanilla, coconut, rose, eucalyptus, citrus, peppermint, sandalwood, jasmine, unscented, honey, green tea, "
        "cucumber, ocean breeze"
    ),
    "flavor name": split_list(
        "dark chocolate, milk chocolate, vanilla, cinnamon, sea salt, peanut butter, caramel, honey, original, blueberry, "
        "strawberry, mango, lemon, ginger, chili lime, barbecue, hazelnut, pumpkin spice, maple, coconut"
    ),
    "style": split_list(
        "standard, deluxe, slim, compact, with case, without case, starter kit, travel kit, upgraded, basic"
    ),
    "material type": split_list("oak, walnut, pine, bamboo, marble, steel, glass, rattan"),
}

DEPARTMENTS = (
    Department(
        "fashion",
        0.20,
        _parse_kinds(
            """
            women's dresses | Clothing, Shoes & Jewelry > Women > Clothing > Dresses > Casual | dress, midi dress, sundress | 14 | 60
            women's tops, tees & blouses | Clothing, Shoes & Jewelry > Women > Clothing > Tops > Blouses | blouse, tunic top, tee shirt | 9 | 40
            women's sweaters | Clothing, Shoes & Jewelry > Women > Clothing > Sweaters > Cardigans | sweater, cardigan, pullover | 16 | 70
            women's leggings | Clothing, Shoes & Jewelry > Women > Clothing > Active > Leggings | leggings, yoga pants, tights | 10 | 45
            women's jumpsuits | Clothing, Shoes & Jewelry > Women > Clothing > Jumpsuits > Rompers | jumpsuit, romper, overalls | 15 | 55
            women's swimsuits | Clothing, Shoes & Jewelry > Women > Clothing > Swimwear > Tankinis | swimsuit, tankini set, bikini | 12 | 50
            women's sandals | Clothing, Shoes & Jewelry > Women > Shoes > Sandals > Slides | sandals, slides, wedge sandals | 15 | 80 | shoes
            men's t-shirts & tanks | Clothing, Shoes & Jewelry > Men > Clothing > Shirts > T-Shirts | t-shirt, graphic tee, tank top | 8 | 35
            men's dress shirts | Clothing, Shoes & Jewelry > Men > Clothing > Shirts > Dress Shirts | dress shirt, button down shirt, oxford shirt | 15 | 65
            men's hoodies | Clothing, Shoes & Jewelry > Men > Clothing > Hoodies > Sweatshirts | hoodie, sweatshirt, zip up hoodie | 18 | 70
            men's shorts | Clothing, Shoes & Jewelry > Men > Clothing > Shorts > Cargo | cargo shorts, gym shorts, board shorts | 10 | 45 | waists
            men's pants | Clothing, Shoes & Jewelry > Men > Clothing > Pants > Casual | chino pants, joggers, sweatpants | 15 | 75 | waists
            men's jackets & coats | Clothing, Shoes & Jewelry > Men > Clothing > Jackets > Lightweight | jacket, windbreaker, bomber jacket | 25 | 140
            men's loafers & slip-ons | Clothing, Shoes & Jewelry > Men > Shoes > Loafers > Slip-Ons | loafers, slip on shoes, moccasins | 20 | 110 | shoes
            """,
            "letters",
        ),
        split_list(
            "long sleeve, short sleeve, machine wash, hand wash, slim fit, loose fit, regular fit, high waist, elastic waist, "
            "tummy control, button closure, zipper closure, drawstring closure, light weight, quick drying, moisture wicking, "
            "polyester spandex, cotton spandex, soft material, daily wear, gym workout, day comfort, v neck, crew neck, "
            "rubber sole, non slip, arch support, water resistant"
        ),
        split_list(
            "casual, trendy, vintage, elegant, classic, sporty, boho, plaid, striped, floral, solid, plus size, summer, fall"
        ),
        split_list(
            "cotton, linen, polyester, fleece, denim, chiffon, knit, jersey, corduroy, rayon, faux suede, canvas"
        ),
        split_list(
            "the beach, the office, a night out, vacation, the gym, weekends, parties, travel, school, everyday life"
        ),
        split_list("pockets, cuffs, hem, collar, lining, waistband, stitching, seams, straps, ruffles"),
        ("color", "size"),
        0.72,
    ),
    Department(
        "garden",
        0.22,
        _parse_kinds(
            """
            area rugs | Home & Kitchen > Home Decor > Rugs > Area Rugs | area rug, runner rug, carpet | 25 | 260 | rooms
            decorative pillows | Home & Kitchen > Bedding > Decorative Pillows > Throw Pillow Covers | throw pillow, pillow cover, cushion cover | 8 | 45 | squares
            bedding sets | Home & Kitchen > Bedding > Sets > Comforter Sets | comforter set, duvet cover, quilt set | 30 | 180 | beds
            curtains | Home & Kitchen > Home Decor > Window Treatments > Curtains | curtains, blackout drapes, sheer panels | 14 | 90 | squares
            coffee tables | Home & Kitchen > Furniture > Living Room > Coffee Tables | coffee table, side table, cocktail table | 60 | 420 | squares
            bookcases | Home & Kitchen > Furniture > Home Office > Bookcases | bookcase, bookshelf, storage shelf | 55 | 380 | squares
            bar stools | Home & Kitchen > Furniture > Game Room > Bar Stools | bar stool, counter stool, kitchen chair | 50 | 300 | squares
            table lamps | Tools & Home Improvement > Lighting > Lamps > Table Lamps | table lamp, desk lamp, bedside lamp | 18 | 150 | squares
            wall art | Home & Kitchen > Wall Art > Posters > Canvas Prints | canvas print, wall art, framed poster | 12 | 120 | squares
            bath towels | Home & Kitchen > Bath > Towels > Bath Towels | bath towel, towel set, bath sheet | 12 | 70 | squares
            storage ottomans | Home & Kitchen > Furniture > Accent > Ottomans | storage ottoman, footrest, bench | 35 | 220 | squares
            planters | Patio, Lawn & Garden > Gardening > Pots > Planters | planter, flower pot, plant stand | 10 | 90 | squares
            """,
            "squares",
        ),
        split_list(
            "machine washable, easy clean, easy assemble, solid wood, engineered wood, heavy duty, space saving, non slip, "
            "living room, dining room, home office, mid century, spot clean, double sided, storage space, steel frame, "
            "memory foam, stain resistant, water resistant, ready hang, super soft, high density, metal legs, eco friendly"
        ),
        split_list(
            "modern, rustic, farmhouse, industrial, bohemian, minimalist, geometric, coastal, antique, nordic, luxury, retro"
        ),
        split_list("oak, walnut, velvet, microfiber, jute, cotton, ceramic, iron, bamboo, marble, faux leather, glass"),
        split_list(
            "the bedroom, the living room, an apartment, the patio, a nursery, the entryway, a dorm, the kitchen, guests"
        ),
        split_list("legs, shelves, edges, frame, fabric, surface, hinges, backing, base, tassels"),
        ("color", "size"),
        0.36,
    ),
    Department(
        "beauty",
        0.24,
        _parse_kinds(
            """
            shampoos | Beauty & Personal Care > Hair Care > Shampoo & Conditioner > Shampoos | shampoo, hair cleanser, shampoo bar | 6 | 40
            hair treatment oils | Beauty & Personal Care > Hair Care > Treatments > Hair Oils | hair oil, scalp serum, hair mask | 7 | 45
            lips makeup | Beauty & Personal Care > Makeup > Lips > Lip Gloss | lip gloss, lipstick, lip balm | 5 | 30 | counts
            eyes makeup | Beauty & Personal Care > Makeup > Eyes > Eyeshadow | eyeshadow palette, mascara, eyeliner | 6 | 40 | counts
            makeup brushes & tools | Beauty & Personal Care > Tools > Makeup Brushes > Sets | makeup brush set, blending sponge, brush kit | 7 | 50 | counts
            body care | Beauty & Personal Care > Skin Care > Body > Moisturizers | body lotion, body butter, hand cream | 6 | 38
            skin care masks | Beauty & Personal Care > Skin Care > Face > Masks | face mask, clay mask, sheet mask | 5 | 36 | counts
            women's fragrance | Beauty & Personal Care > Fragrance > Women's > Eau de Parfum | perfume, eau de parfum, body mist | 15 | 120
            toothbrushes | Beauty & Personal Care > Oral Care > Toothbrushes > Manual | toothbrush, tongue scraper, brush heads | 4 | 40 | counts
            nail polish | Beauty & Personal Care > Nail Care > Polish > Gel | nail polish, gel polish, nail lacquer | 5 | 28 | counts
            """,
            "ounces",
        ),
        split_list(
            "cruelty free, paraben free, sulfate free, fragrance free, alcohol free, tea tree, argan oil, coconut oil, "
            "hyaluronic acid, vitamin c, sensitive skin, dry skin, dry hair, damaged hair, hair growth, long lasting, "
            "easy apply, easy carry, travel size, dermatologist tested, natural ingredients, anti aging, deep cleaning"
        ),
        split_list(
            "gentle, nourishing, hydrating, matte, glossy, creamy, refreshing, botanical, radiant, professional, daily"
        ),
        split_list("aloe, shea butter, jojoba, rosehip, charcoal, keratin, collagen, oatmeal, turmeric, chamomile"),
        split_list(
            "morning routines, travel, teens, all skin types, salons, sensitive scalps, gifts, the shower, bedtime"
        ),
        split_list("bottle, pump, cap, formula, texture, bristles, applicator, handle, pouch, tube"),
        ("color", "scent", "size"),
        0.40,
    ),
    Department(
        "electronics",
        0.23,
        _parse_kinds(
            """
            headphones | Electronics > Headphones > Over-Ear > Wireless Headphones | headphones, headset, earbuds | 12 | 220 | counts
            phone cases | Cell Phones & Accessories > Cases > Basic Cases > Bumpers | phone case, bumper cover, wallet case | 7 | 40 | devices
            screen protectors | Cell Phones & Accessories > Accessories > Screen Protectors > Glass | screen protector, tempered glass, lens protector | 5 | 25 | devices
            hdmi cables | Electronics > Accessories & Supplies > Cables > HDMI Cables | hdmi cable, video cable, display cord | 6 | 45 | lengths
            usb chargers | Cell Phones & Accessories > Chargers > Wall Chargers > Adapters | wall charger, charging block, power adapter | 7 | 40 | counts
            tripods & monopods | Electronics > Camera & Photo > Tripods > Compact Tripods | tripod, selfie stick, phone mount | 12 | 120 | counts
            bluetooth speakers | Electronics > Portable Audio > Speakers > Bluetooth | bluetooth speaker, sound box, shower speaker | 14 | 160 | counts
            smartwatch bands | Electronics > Wearable Technology > Accessories > Bands | watch band, smartwatch strap, wristband | 6 | 45 | counts
            power banks | Cell Phones & Accessories > Accessories > Batteries > Power Banks | power bank, battery pack, portable charger | 14 | 90 | counts
            keyboards | Electronics > Computers > Accessories > Keyboards | keyboard, keypad, mechanical keyboard | 15 | 140 | counts
            """,
            "counts",
        ),
        split_list(
            "fast charging, high speed, gold plated, hands free, noise cancelling, easy install, easy use, wireless charging, "
            "water resistant, long lasting, plug play, ultra hd, high definition, stereo sound, tempered glass, glass screen, "
            "carrying case, quick release, light weight, heavy duty, usb port, batteries included, case cover, aluminum alloy"
        ),
        split_list(
            "slim, rugged, portable, foldable, compact, universal, premium, smart, sleek, upgraded, professional"
        ),
        split_list(
            "aluminum, silicone, carbon fiber, nylon braid, tempered glass, leather, stainless steel, rubber, copper"
        ),
        split_list("travel, gaming, the car, video calls, the office, hiking, streaming, work from home, concerts"),
        split_list("ports, buttons, connectors, clips, battery, cushions, screen, stand, chip, cable"),
        ("color", "size", "style"),
        0.36,
    ),
    Department(
        "grocery",
        0.11,
        _parse_kinds(
            """
            coffee | Grocery & Gourmet Food > Beverages > Coffee > Ground Coffee | ground coffee, coffee beans, coffee pods | 8 | 60
            tea | Grocery & Gourmet Food > Beverages > Tea > Herbal | herbal tea, loose leaf tea, tea bags | 6 | 40
            snack bars | Grocery & Gourmet Food > Snacks & Sweets > Bars > Nutrition Bars | snack bar, granola bar, protein bar | 8 | 45
            cookies | Grocery & Gourmet Food > Snacks & Sweets > Cookies > Shortbread | cookies, biscuits, shortbread | 5 | 40
            dried fruits & raisins | Grocery & Gourmet Food > Produce > Dried Fruits > Mixes | dried fruit, trail mix, fruit snack | 7 | 48
            sauces & gravies | Grocery & Gourmet Food > Pantry Staples > Sauces > Hot Sauce | hot sauce, pasta sauce, marinade | 5 | 38
            popcorn | Grocery & Gourmet Food > Snacks & Sweets > Popcorn > Popped | popcorn, kettle corn, popcorn kernels | 5 | 35
            breakfast foods | Grocery & Gourmet Food > Breakfast > Cereals > Granola | granola, oatmeal, cereal | 6 | 42
            """,
            "packs",
        ),
        split_list(
            "gluten free, sugar free, dairy free, nut free, soy free, plant based, non gmo, low carb, low sodium, low calorie, "
            "high protein, keto friendly, certified organic, artificial flavors, individually wrapped, ready eat, shelf stable, "
            "kosher certified, source vitamin, gift basket"
        ),
        split_list(
            "gourmet, crunchy, hand crafted, artisan, small batch, roasted, family size, wholesome, savory, zesty, homestyle"
        ),
        split_list("oats, almonds, cocoa, sea salt, honey, cane sugar, olive oil, chia, flax, quinoa"),
        split_list("school lunches, road trips, breakfast, parties, the office, hikers, bakers, gifts, movie nights"),
        split_list("bag, box, jar, pouch, tin, recipe, crunch, aroma, roast, blend"),
        ("flavor name", "size"),
        0.42,
    ),
)

TITLE_OPENERS = split_list(
    "upgraded, 2022 new, premium, everyday, signature, original, limited, deluxe, essential, handpicked, best seller, featured"
)
CLAIMS = split_list(
    "made to last, designed in our own studio, tested by real customers, packed with care, a thoughtful gift, built with "
    "attention to detail, loved by families, chosen by professionals, refined over many seasons, easy to live with, a small "
    "daily luxury, ready when you are, worth every penny, backed by our team, inspired by simple living, finished by hand"
)
CAUTIONS = split_list(
    "colors may differ slightly between screens, please check the chart before ordering, allow a small tolerance from manual "
    "measurement, keep out of reach of small children, store in a cool dry place, packaging may vary, ships within two days, "
    "contact us about anything that is not right, sizes run true, accessories are not included"
)
SYLLABLES = split_list(
    "al an ar bel ber bo bri ca cel cor da del dor el en fa fen fi ga glo gra ha hel il is jo ka kel ki la len lo lu ma mel mi "
    "mo na nel no nor o or pa pel pi ra ren ri ro sa sel si so ta tel ti to tra u va vel vi vo wen wi xa yo za zel zo"
)
BRAND_ENDINGS = split_list("ia, ex, on, co, ly, ora, ine, us, ette, io, wear, home, lab, craft")
