"""WebShop: its shop, rules, search, and generated shops. The environment is in `env`."""
